// Runs Kafka's command line tools in one process: one command per line of JSON (tests/real_clients).
import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.BufferedReader;
import java.io.ByteArrayOutputStream;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.lang.reflect.InvocationTargetException;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import org.apache.kafka.common.config.ConfigDef;
import org.apache.kafka.common.utils.Exit;
import org.apache.kafka.coordinator.group.GroupConfig;
import org.apache.kafka.server.config.AbstractKafkaConfig;
import org.apache.kafka.server.config.ServerTopicConfigSynonyms;
import org.apache.kafka.storage.internals.log.LogConfig;

public final class Tools {
    private static final ObjectMapper JSON = new ObjectMapper();
    private static Integer status;

    /** A tool has called exit. If it catches this error and calls exit again, the first status counts. */
    private static final class Ended extends Error {
        Ended(int code) {
            super(null, null, false, false);
            status = status == null ? Integer.valueOf(code) : status;
        }
    }

    public static void main(String[] none) throws Exception {
        PrintStream out = System.out;
        Exit.setExitProcedure((code, message) -> {
            throw new Ended(code);
        });
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            List<String> words = new ArrayList<>();
            for (JsonNode each : JSON.readTree(line)) {
                words.add(each.asText());
            }
            out.println(JSON.writeValueAsString(words.get(0).equals("settings") ? settings() : run(words)));
        }
        System.exit(0);
    }

    private static Map<String, Object> run(List<String> words) throws Exception {
        ByteArrayOutputStream output = new ByteArrayOutputStream();
        PrintStream out = System.out;
        PrintStream errors = System.err;
        PrintStream to = new PrintStream(output, true);
        System.setOut(to);
        System.setErr(to);
        status = null;
        try {
            String[] arguments = words.subList(1, words.size()).toArray(new String[0]);
            Class.forName(words.get(0)).getMethod("main", String[].class).invoke(null, (Object) arguments);
        } catch (InvocationTargetException failure) {
            if (!(failure.getCause() instanceof Ended)) {
                failure.getCause().printStackTrace(to);
                status = -1;
            }
        } finally {
            System.setOut(out);
            System.setErr(errors);
        }
        return Map.of("status", status == null ? 0 : status, "output", output.toString());
    }

    /** Kafka's definitions of the settings of topics, groups and brokers. */
    private static Map<String, Object> settings() throws Exception {
        java.lang.reflect.Field ofTopics = LogConfig.class.getDeclaredField("CONFIG");
        ofTopics.setAccessible(true);
        return Map.of(
            "topic", described((ConfigDef) ofTopics.get(null)),
            "group", described(GroupConfig.CONFIG_DEF),
            "broker", described(AbstractKafkaConfig.CONFIG_DEF),
            "synonyms", ServerTopicConfigSynonyms.TOPIC_CONFIG_SYNONYMS);
    }

    private static Map<String, Object> described(ConfigDef settings) {
        Map<String, Object> found = new TreeMap<>();
        for (ConfigDef.ConfigKey each : settings.configKeys().values()) {
            if (!each.internalConfig) {
                Object preset = each.hasDefault() ? each.defaultValue : null;
                found.put(each.name, List.of(each.type.name().toLowerCase(), "" + ConfigDef.convertToString(preset, each.type)));
            }
        }
        return found;
    }
}
