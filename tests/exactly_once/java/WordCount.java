import java.io.PrintStream;
import java.time.Duration;
import java.util.Arrays;
import java.util.Map;
import java.util.Properties;

import org.apache.kafka.clients.consumer.ConsumerConfig;
import org.apache.kafka.clients.producer.ProducerConfig;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.StreamsConfig;
import org.apache.kafka.streams.errors.StreamsUncaughtExceptionHandler.StreamThreadExceptionResponse;

/**
 * Counts words with exactly_once_v2. It prints its states and errors, and ends when its standard input does.
 *
 * Without a cache, each word of the input is one record of the output. So counts without gaps show that no
 * word was lost or counted twice.
 */
public final class WordCount {
    /** The arguments are agents, the topics of lines and of counts, and a directory for states. */
    public static void main(String[] words) throws Exception {
        StreamsBuilder builder = new StreamsBuilder();
        builder.<String, String>stream(words[1])
            .flatMapValues(line -> Arrays.asList(line.split(" ")))
            .groupBy((key, word) -> word)
            .count()
            .toStream()
            .mapValues(count -> Long.toString(count))
            .to(words[2]);
        PrintStream out = System.out;
        KafkaStreams streams = new KafkaStreams(builder.build(), settings(words[0], words[3]));
        streams.setUncaughtExceptionHandler(error -> {
            out.println("error " + error);
            return StreamThreadExceptionResponse.REPLACE_THREAD;
        });
        streams.setStateListener((state, before) -> out.println("state " + state));
        streams.start();
        while (System.in.read() >= 0) {
            // The parent writes nothing. Its end, or that of the work, closes the pipe.
        }
        boolean closed = streams.close(Duration.ofSeconds(60));
        out.println("closed " + closed);
        out.flush();
        Runtime.getRuntime().halt(closed ? 0 : 1);
    }

    private static Properties settings(String agents, String directory) {
        Properties settings = new Properties();
        settings.putAll(Map.of(
            StreamsConfig.APPLICATION_ID_CONFIG, "word-count",
            StreamsConfig.BOOTSTRAP_SERVERS_CONFIG, agents,
            StreamsConfig.PROCESSING_GUARANTEE_CONFIG, StreamsConfig.EXACTLY_ONCE_V2,
            StreamsConfig.STATE_DIR_CONFIG, directory,
            StreamsConfig.STATESTORE_CACHE_MAX_BYTES_CONFIG, 0,
            StreamsConfig.NUM_STREAM_THREADS_CONFIG, 2,
            StreamsConfig.DEFAULT_KEY_SERDE_CLASS_CONFIG, Serdes.StringSerde.class,
            StreamsConfig.DEFAULT_VALUE_SERDE_CLASS_CONFIG, Serdes.StringSerde.class,
            StreamsConfig.producerPrefix(ProducerConfig.TRANSACTION_TIMEOUT_CONFIG), 20_000
        ));
        settings.putAll(Map.of(
            ConsumerConfig.AUTO_OFFSET_RESET_CONFIG, "earliest",
            ConsumerConfig.SESSION_TIMEOUT_MS_CONFIG, 10_000,
            ConsumerConfig.HEARTBEAT_INTERVAL_MS_CONFIG, 1_000,
            ConsumerConfig.METADATA_MAX_AGE_CONFIG, 1_000,
            "reconnect.backoff.max.ms", 300
        ));
        return settings;
    }
}
