import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CyclicBarrier;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;

import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerConfig;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/**
 * Runs transactions one after the other, in several threads with a producer each.
 *
 * A request is a line of JSON: settings, topic, partitions, clients, transactions of each client, records of
 * each transaction, and the size of a record. The response has errors, the seconds of all clients together,
 * and percentiles of the time of a commit in milliseconds.
 */
public final class Transactions {
    private static final ObjectMapper JSON = new ObjectMapper();

    public static void main(String[] none) throws Exception {
        BufferedReader requests = new BufferedReader(new InputStreamReader(System.in));
        for (String line = requests.readLine(); line != null; line = requests.readLine()) {
            System.out.println(JSON.writeValueAsString(run(JSON.readTree(line))));
            System.out.flush();
            System.gc(); // before the next load, not during it
        }
        Runtime.getRuntime().halt(0);
    }

    private static Map<String, Object> run(JsonNode request) throws Exception {
        int clients = request.get("clients").asInt();
        long[][] commits = new long[clients][];
        long[] begins = new long[clients];
        long[] ends = new long[clients];
        List<String> errors = new ArrayList<>();
        CyclicBarrier begin = new CyclicBarrier(clients);
        List<Thread> threads = new ArrayList<>();
        for (int each = 0; each < clients; each++) {
            int number = each;
            Thread thread = new Thread(() -> {
                try (KafkaProducer<byte[], byte[]> producer = producer(request, number)) {
                    producer.initTransactions();
                    begin.await();
                    begins[number] = System.nanoTime();
                    commits[number] = transact(producer, request);
                    ends[number] = System.nanoTime();
                } catch (Throwable error) {
                    begin.reset();
                    synchronized (errors) {
                        errors.add(error.toString());
                    }
                }
            });
            threads.add(thread);
            thread.start();
        }
        for (Thread thread : threads) {
            thread.join();
        }
        if (!errors.isEmpty()) {
            return Map.of("errors", errors);
        }
        long[] all = Arrays.stream(commits).flatMapToLong(Arrays::stream).sorted().toArray();
        double seconds = (Arrays.stream(ends).max().getAsLong() - Arrays.stream(begins).min().getAsLong()) / 1e9;
        return Map.of("errors", errors, "seconds", seconds, "p50_ms", at(all, 0.5), "p99_ms", at(all, 0.99));
    }

    private static double at(long[] sorted, double share) {
        return sorted[(int) Math.min(sorted.length - 1, sorted.length * share)] / 1e6;
    }

    private static KafkaProducer<byte[], byte[]> producer(JsonNode request, int number) {
        Map<String, Object> settings = new HashMap<>();
        request.get("settings").properties().forEach(each -> settings.put(each.getKey(), each.getValue().asText()));
        settings.put(ProducerConfig.TRANSACTIONAL_ID_CONFIG, request.get("topic").asText() + "-java-" + number);
        return new KafkaProducer<>(settings, new ByteArraySerializer(), new ByteArraySerializer());
    }

    /** Return the nanoseconds of each commit. */
    private static long[] transact(KafkaProducer<byte[], byte[]> producer, JsonNode request) {
        String topic = request.get("topic").asText();
        int partitions = request.get("partitions").asInt();
        int records = request.get("records").asInt();
        byte[] value = new byte[request.get("record_bytes").asInt()];
        long[] commits = new long[request.get("transactions").asInt()];
        for (int number = 0; number < commits.length; number++) {
            producer.beginTransaction();
            for (int record = 0; record < records; record++) {
                producer.send(new ProducerRecord<>(topic, record % partitions, null, value));
            }
            long begin = System.nanoTime();
            producer.commitTransaction();
            commits[number] = System.nanoTime() - begin;
        }
        return commits;
    }
}
