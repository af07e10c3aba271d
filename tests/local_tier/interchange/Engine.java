import java.io.BufferedReader;
import java.io.File;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.Comparator;
import java.util.HashMap;
import java.util.HexFormat;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.PriorityQueue;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.Delayed;
import java.util.concurrent.ScheduledFuture;
import java.util.concurrent.TimeUnit;
import java.util.function.Supplier;

import org.apache.kafka.common.message.DescribeProducersResponseData.ProducerState;
import org.apache.kafka.common.record.internal.FileRecords;
import org.apache.kafka.common.record.internal.MemoryRecords;
import org.apache.kafka.common.utils.Time;
import org.apache.kafka.server.common.RequestLocal;
import org.apache.kafka.server.util.FileLock;
import org.apache.kafka.server.util.Scheduler;
import org.apache.kafka.storage.internals.epoch.LeaderEpochFileCache;
import org.apache.kafka.storage.internals.log.AppendOrigin;
import org.apache.kafka.storage.internals.log.Cleaner;
import org.apache.kafka.storage.internals.log.LogAppendInfo;
import org.apache.kafka.storage.internals.log.LogConfig;
import org.apache.kafka.storage.internals.log.LogDirFailureChannel;
import org.apache.kafka.storage.internals.log.LogSegment;
import org.apache.kafka.storage.internals.log.LogStartOffsetIncrementReason;
import org.apache.kafka.storage.internals.log.LogToClean;
import org.apache.kafka.storage.internals.log.OffsetResultHolder;
import org.apache.kafka.storage.internals.log.ProducerStateManagerConfig;
import org.apache.kafka.storage.internals.log.SkimpyOffsetMap;
import org.apache.kafka.storage.internals.log.UnifiedLog;
import org.apache.kafka.storage.internals.log.VerificationGuard;
import org.apache.kafka.storage.internals.utils.Throttler;
import org.apache.kafka.storage.log.metrics.BrokerTopicStats;

/**
 * Kafka's log engine behind a line protocol, for comparisons with ours: one process serves many logs.
 *
 * A request is a line of words, the first of them a command. The response is a line: "ok" and values, or
 * "error" and the class of the exception. Time and background work move only on request.
 */
public final class Engine {
    private static final short TRANSACTION_VERSION = 1;

    private final ManualTime time = new ManualTime();
    private final ManualScheduler scheduler = new ManualScheduler();
    private final Map<String, UnifiedLog> logs = new HashMap<>();
    private final Map<String, FileLock> locks = new HashMap<>();

    public static void main(String[] arguments) throws Exception {
        PrintStream out = new PrintStream(System.out, false);
        System.setOut(System.err); // the responses have standard output for themselves
        Engine engine = new Engine();
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            String response;
            try {
                response = ("ok " + engine.execute(line.split(" "))).trim();
            } catch (Throwable error) {
                error.printStackTrace();
                response = "error " + error.getClass().getSimpleName();
            }
            out.println(response.replace('\n', ' '));
            out.flush();
        }
    }

    private String execute(String[] words) throws Exception {
        switch (words[0]) {
            case "time":
                time.now = Long.parseLong(words[1]);
                scheduler.runDue();
                return "";
            case "lock":
                FileLock lock = new FileLock(new File(words[1]));
                boolean taken = lock.tryLock();
                if (taken) locks.put(words[1], lock); else lock.destroy();
                return Boolean.toString(taken);
            case "unlock":
                locks.remove(words[1]).destroy();
                return "";
            case "open":
                return open(words);
            default:
                return onLog(logs.get(words[1]), words);
        }
    }

    /** open DIRECTORY CLEAN RECOVERY_POINT LOG_START_OFFSET [SETTING=VALUE]... */
    private String open(String[] words) throws Exception {
        Map<String, String> settings = new HashMap<>();
        for (int i = 5; i < words.length; i++) {
            String[] pair = words[i].split("=", 2);
            settings.put(pair[0], pair[1]);
        }
        UnifiedLog log = UnifiedLog.create(
            new File(words[1]), new LogConfig(settings), Long.parseLong(words[4]), Long.parseLong(words[3]),
            scheduler, new BrokerTopicStats(false), time, 900_000,
            new ProducerStateManagerConfig(86_400_000, false), 600_000, new LogDirFailureChannel(10),
            Boolean.parseBoolean(words[2]), Optional.empty());
        logs.put(words[1], log);
        return state(log);
    }

    private String onLog(UnifiedLog log, String[] words) throws Exception {
        switch (words[0]) {
            case "append": { // append DIRECTORY LEADER_EPOCH ORIGIN BATCHES
                LogAppendInfo info = log.appendAsLeader(
                    records(words[4]), Integer.parseInt(words[2]), AppendOrigin.valueOf(words[3]),
                    RequestLocal.noCaching(), VerificationGuard.SENTINEL, TRANSACTION_VERSION);
                return info.firstOffset() + " " + info.lastOffset();
            }
            case "follow": { // follow DIRECTORY LEADER_EPOCH BATCHES
                LogAppendInfo info = log.appendAsFollower(records(words[3]), Integer.parseInt(words[2]));
                return info.firstOffset() + " " + info.lastOffset();
            }
            case "watermark":
                return Long.toString(log.updateHighWatermark(Long.parseLong(words[2])));
            case "start":
                return Boolean.toString(log.maybeIncrementLogStartOffset(
                    Long.parseLong(words[2]), LogStartOffsetIncrementReason.ClientRecordDeletion));
            case "roll":
                return Long.toString(log.roll().baseOffset());
            case "flush":
                log.flush(false);
                return "";
            case "truncate":
                return Boolean.toString(log.truncateTo(Long.parseLong(words[2])));
            case "retain":
                return Integer.toString(log.deleteOldSegments());
            case "clean":
                return clean(log, Long.parseLong(words[2]), Long.parseLong(words[3]));
            case "time_of":
                return timestamp(log.fetchOffsetByTimestamp(Long.parseLong(words[2]), Optional.empty()));
            case "epoch_end":
                return log.endOffsetForEpoch(Integer.parseInt(words[2]))
                    .map(found -> found.epoch() + " " + found.offset()).orElse("-1 -1");
            case "state":
                return state(log);
            case "close":
                log.close();
                scheduler.tasks.clear(); // as at the end of the process
                return "";
            case "crash":
                log.closeHandlers();
                scheduler.tasks.clear();
                return "";
            default:
                throw new IllegalArgumentException(words[0]);
        }
    }

    private String clean(UnifiedLog log, long firstDirty, long end) throws Exception {
        Cleaner cleaner = new Cleaner(
            0, new SkimpyOffsetMap(1 << 20), 1 << 16, 1 << 20, 0.9,
            new Throttler(Double.MAX_VALUE, 300, "throttler", "entries", time), time, partition -> { });
        return Long.toString(cleaner.clean(new LogToClean(log, firstDirty, end, true)).getKey());
    }

    private static String timestamp(OffsetResultHolder found) {
        Optional<FileRecords.TimestampAndOffset> record = found.timestampAndOffsetOpt();
        return record.map(each -> each.timestamp + " " + each.offset).orElse("none");
    }

    /** The state as JSON, in the form of `state_of` in Python. */
    private static String state(UnifiedLog log) throws Exception {
        List<String> segments = new ArrayList<>();
        for (LogSegment segment : log.logSegments())
            segments.add("[" + segment.baseOffset() + "," + segment.size() + "]");
        List<String> epochs = new ArrayList<>();
        LeaderEpochFileCache cache = log.leaderEpochCache();
        cache.epochEntries().forEach(each -> epochs.add("[" + each.epoch() + "," + each.startOffset() + "]"));
        List<String> producers = new ArrayList<>();
        log.activeProducers().stream().sorted(Comparator.comparingLong(ProducerState::producerId)).forEach(
            each -> producers.add("[" + each.producerId() + "," + each.producerEpoch() + ","
                + each.lastSequence() + "," + each.currentTxnStartOffset() + "]"));
        return "{\"log_start_offset\":" + log.logStartOffset() + ",\"log_end_offset\":" + log.logEndOffset()
            + ",\"high_watermark\":" + log.highWatermark() + ",\"last_stable_offset\":" + log.lastStableOffset()
            + ",\"segments\":" + segments + ",\"epochs\":" + epochs + ",\"producers\":" + producers + "}";
    }

    private static MemoryRecords records(String hex) {
        return MemoryRecords.readableRecords(ByteBuffer.wrap(HexFormat.of().parseHex(hex)));
    }

    private static final class ManualTime implements Time {
        private long now = 0;

        @Override public long milliseconds() {
            return now;
        }

        @Override public long nanoseconds() {
            return now * 1_000_000;
        }

        @Override public void sleep(long ms) {
            now += ms;
        }

        @Override public void waitObject(Object object, Supplier<Boolean> condition, long deadlineMs) {
            throw new UnsupportedOperationException();
        }
    }

    private final class ManualScheduler implements Scheduler {
        private record Task(long due, long order, Runnable work) { }

        private final PriorityQueue<Task> tasks = new PriorityQueue<>(
            Comparator.comparingLong(Task::due).thenComparingLong(Task::order));
        private long order = 0;

        @Override public void startup() { }

        @Override public void shutdown() { }

        @Override public ScheduledFuture<?> schedule(String name, Runnable task, long delayMs, long periodMs) {
            if (periodMs <= 0) tasks.add(new Task(time.now + Math.max(delayMs, 0), order++, task));
            return new Unscheduled();
        }

        @Override public void resizeThreadPool(int size) { }

        void runDue() {
            while (!tasks.isEmpty() && tasks.peek().due <= time.now) tasks.poll().work.run();
        }
    }

    /** The handle of a task, which nobody waits for. */
    private static final class Unscheduled extends CompletableFuture<Object> implements ScheduledFuture<Object> {
        @Override public long getDelay(TimeUnit unit) {
            return 0;
        }

        @Override public int compareTo(Delayed other) {
            return 0;
        }
    }
}
