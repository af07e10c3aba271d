// Prints what Kafka makes of certificates (tests/agent/security/tls/test_kafkas_mapping.py).
// Arguments: pairs of a PEM file and rules. Output: one line of JSON for each, [subject, name or null].
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.FileInputStream;
import java.io.IOException;
import java.io.InputStream;
import java.security.cert.CertificateFactory;
import java.security.cert.X509Certificate;
import org.apache.kafka.common.security.ssl.SslPrincipalMapper;

public final class Principals {
    public static void main(String[] arguments) throws Exception {
        ObjectMapper json = new ObjectMapper();
        for (int at = 0; at < arguments.length; at += 2) {
            String subject;
            try (InputStream file = new FileInputStream(arguments[at])) {
                X509Certificate certificate =
                    (X509Certificate) CertificateFactory.getInstance("X.509").generateCertificate(file);
                subject = certificate.getSubjectX500Principal().getName();
            }
            String name;
            try {
                name = SslPrincipalMapper.fromRules(arguments[at + 1]).getName(subject);
            } catch (IOException none) {
                name = null;
            }
            System.out.println(json.writeValueAsString(new String[] {subject, name}));
        }
    }
}
