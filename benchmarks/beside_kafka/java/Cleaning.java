import java.io.BufferedReader;
import java.io.File;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.lang.management.ManagementFactory;
import java.util.Map;
import java.util.Optional;

import com.fasterxml.jackson.databind.ObjectMapper;

import com.sun.management.OperatingSystemMXBean;

import org.apache.kafka.common.utils.Time;
import org.apache.kafka.server.util.KafkaScheduler;
import org.apache.kafka.storage.internals.log.Cleaner;
import org.apache.kafka.storage.internals.log.CleanerConfig;
import org.apache.kafka.storage.internals.log.CleanerStats;
import org.apache.kafka.storage.internals.log.LogConfig;
import org.apache.kafka.storage.internals.log.LogDirFailureChannel;
import org.apache.kafka.storage.internals.log.LogToClean;
import org.apache.kafka.storage.internals.log.ProducerStateManagerConfig;
import org.apache.kafka.storage.internals.log.SkimpyOffsetMap;
import org.apache.kafka.storage.internals.log.UnifiedLog;
import org.apache.kafka.storage.internals.utils.Throttler;
import org.apache.kafka.storage.log.metrics.BrokerTopicStats;

/** Kafka's log cleaner with its default settings. A request is the directory of a log, the response a line of JSON. */
public final class Cleaning {
    private static final ObjectMapper JSON = new ObjectMapper();

    public static void main(String[] none) throws Exception {
        PrintStream responses = System.out;
        System.setOut(System.err);
        KafkaScheduler scheduler = new KafkaScheduler(1);
        scheduler.startup();
        SkimpyOffsetMap map = new SkimpyOffsetMap((int) CleanerConfig.LOG_CLEANER_DEDUPE_BUFFER_SIZE);
        BufferedReader requests = new BufferedReader(new InputStreamReader(System.in));
        for (String line = requests.readLine(); line != null; line = requests.readLine()) {
            responses.println(JSON.writeValueAsString(clean(new File(line), scheduler, map)));
            responses.flush();
        }
        Runtime.getRuntime().halt(0);
    }

    private static Map<String, Object> clean(File directory, KafkaScheduler scheduler, SkimpyOffsetMap map)
            throws Exception {
        UnifiedLog log = UnifiedLog.create(
            directory, new LogConfig(Map.of("cleanup.policy", "compact")), 0, 0, scheduler,
            new BrokerTopicStats(false), Time.SYSTEM, 900_000, new ProducerStateManagerConfig(86_400_000, false),
            600_000, new LogDirFailureChannel(10), true, Optional.empty());
        log.roll();
        log.updateHighWatermark(log.logEndOffset());
        Cleaner cleaner = new Cleaner(
            0, map, CleanerConfig.LOG_CLEANER_IO_BUFFER_SIZE / 2, log.config().maxMessageSize(),
            CleanerConfig.LOG_CLEANER_DEDUPE_BUFFER_LOAD_FACTOR,
            new Throttler(Double.MAX_VALUE, 300, "throttler", "entries", Time.SYSTEM), Time.SYSTEM, partition -> { });
        System.gc();
        OperatingSystemMXBean process = (OperatingSystemMXBean) ManagementFactory.getOperatingSystemMXBean();
        long processor = process.getProcessCpuTime();
        long thread = ManagementFactory.getThreadMXBean().getCurrentThreadCpuTime();
        long begin = System.nanoTime();
        Map.Entry<Long, CleanerStats> result = cleaner.clean(new LogToClean(log, 0, log.logEndOffset(), true));
        long wall = System.nanoTime() - begin;
        thread = ManagementFactory.getThreadMXBean().getCurrentThreadCpuTime() - thread;
        processor = process.getProcessCpuTime() - processor;
        long end = log.logEndOffset();
        log.close();
        if (result.getKey() != end) throw new IllegalStateException("cleaned up to " + result.getKey() + " of " + end);
        return Map.of(
            "seconds", wall / 1e9, "process_cpu_seconds", processor / 1e9, "thread_cpu_seconds", thread / 1e9,
            "records_read", result.getValue().messagesRead(), "bytes_written", result.getValue().bytesWritten());
    }
}
