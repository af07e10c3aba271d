// Consumers of Kafka's own client that read all partitions of a topic past a truncation (tests/end_to_end).
import com.fasterxml.jackson.databind.ObjectMapper;
import java.time.Duration;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.LogTruncationException;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.StringDeserializer;

public final class Truncation {
    private static final ObjectMapper JSON = new ObjectMapper();

    /** The arguments are an agent, a topic, its number of partitions, and values of auto.offset.reset. */
    public static void main(String[] words) throws Exception {
        List<TopicPartition> partitions = new ArrayList<>();
        for (int number = 0; number < Integer.parseInt(words[2]); number++) {
            partitions.add(new TopicPartition(words[1], number));
        }
        Map<String, KafkaConsumer<String, String>> consumers = new LinkedHashMap<>();
        for (int number = 3; number < words.length; number++) {
            KafkaConsumer<String, String> consumer = consumer(words[0], words[number]);
            consumer.assign(partitions);
            partitions.forEach(each -> consumer.seek(each, 0));
            consumers.put(words[number], consumer);
        }
        while (true) {
            for (Map.Entry<String, KafkaConsumer<String, String>> each : consumers.entrySet()) {
                poll(each.getKey(), each.getValue());
            }
        }
    }

    private static KafkaConsumer<String, String> consumer(String agent, String policy) {
        Map<String, Object> settings = new HashMap<>();
        settings.put("bootstrap.servers", agent);
        settings.put("auto.offset.reset", policy);
        settings.put("enable.auto.commit", false);
        settings.put("metadata.max.age.ms", 1000);
        StringDeserializer text = new StringDeserializer();
        return new KafkaConsumer<>(settings, text, text);
    }

    /** Print each record, and each truncation; go back to where the logs diverge, as an application may. */
    private static void poll(String policy, KafkaConsumer<String, String> consumer) throws Exception {
        try {
            for (ConsumerRecord<String, String> each : consumer.poll(Duration.ofMillis(50))) {
                print(policy, "record", each.partition(), each.offset(), each.leaderEpoch().orElse(-1), each.value());
            }
        } catch (LogTruncationException truncation) {
            for (Map.Entry<TopicPartition, OffsetAndMetadata> each : truncation.divergentOffsets().entrySet()) {
                OffsetAndMetadata end = each.getValue();
                print(policy, "truncation", each.getKey().partition(), end.offset(), end.leaderEpoch().orElse(-1), "");
                consumer.seek(each.getKey(), end);
            }
        }
    }

    private static void print(Object... parts) throws Exception {
        System.out.println(JSON.writeValueAsString(parts));
    }
}
