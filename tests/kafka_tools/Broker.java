import java.io.FileReader;
import java.io.PrintStream;
import java.util.List;
import java.util.Properties;

import kafka.server.KafkaConfig;
import kafka.server.KafkaRaftServer;

import org.apache.kafka.common.utils.Time;
import org.apache.kafka.metadata.storage.Formatter;

/** A real broker and controller in one process: formats its directory if needed, serves, and dies with its parent. */
public final class Broker {
    public static void main(String[] arguments) throws Exception {
        PrintStream out = System.out;
        System.setOut(System.err);
        Properties properties = new Properties();
        try (FileReader reader = new FileReader(arguments[0])) {
            properties.load(reader);
        }
        String directory = properties.getProperty("log.dirs");
        new Formatter()
            .setPrintStream(System.err)
            .setNodeId(Integer.parseInt(properties.getProperty("node.id")))
            .setClusterId(arguments[1])
            .setDirectories(List.of(directory))
            .setMetadataLogDirectory(directory)
            .setControllerListenerName("CONTROLLER")
            .setFeatureLevel("kraft.version", (short) 0)
            .setIgnoreFormatted(true)
            .run();
        new KafkaRaftServer(KafkaConfig.fromProps(properties, false), Time.SYSTEM).startup();
        out.println("started");
        out.flush();
        while (System.in.read() >= 0) {
            // The parent writes nothing. Its end closes the pipe.
        }
        Runtime.getRuntime().halt(0);
    }
}
