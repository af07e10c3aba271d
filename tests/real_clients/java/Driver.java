// Driver for Kafka's own client: one request and one response per line of JSON (tests/real_clients).
import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Collections;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.Future;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.AlterConfigOp;
import org.apache.kafka.clients.admin.ConfigEntry;
import org.apache.kafka.clients.admin.NewPartitions;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.consumer.CommitFailedException;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.errors.RebalanceInProgressException;
import org.apache.kafka.common.errors.RetriableException;
import org.apache.kafka.common.errors.StaleMemberEpochException;
import org.apache.kafka.common.errors.UnknownMemberIdException;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

public final class Driver {
    private static final ObjectMapper JSON = new ObjectMapper();
    private static final List<String> CODECS = List.of("none", "gzip", "snappy", "lz4", "zstd");
    private static String protocol;
    private static Member member;
    private static final Map<String, Object> SECURITY = new HashMap<>();

    /** The argument is the group protocol of the members: classic or consumer. */
    public static void main(String[] words) throws Exception {
        protocol = words[0];
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            Map<String, Object> answer = new HashMap<>();
            try {
                answer.put("result", act(JSON.readTree(line)));
            } catch (Exception failure) {
                answer.put("error", failure + (failure.getCause() == null ? "" : ", for " + failure.getCause()));
            }
            System.out.println(JSON.writeValueAsString(answer));
        }
        System.exit(0);
    }

    private static Object act(JsonNode given) throws Exception {
        switch (given.get("do").asText()) {
            case "traits":
                return Map.of("codecs", CODECS, "acks", List.of(0, 1, -1), "idempotent", true);
            case "secure":
                return secure(given);
            case "produce":
                return produce(given);
            case "bounds":
                return bounds(given);
            case "read":
                return read(given);
            case "transact":
                return transact(given);
            case "read_committed":
                return readCommitted(given);
            case "administer":
                return administer(given);
            case "join":
                member = new Member(given);
                member.thread.start();
                return null;
            case "seen":
                return member.seen();
            case "leave":
                member.leave();
                return null;
            default:
                throw new IllegalArgumentException("no such request");
        }
    }

    private static Object transact(JsonNode given) {
        Map<String, Object> settings = new HashMap<>();
        settings.put("bootstrap.servers", given.get("bootstrap").asText());
        settings.put("transactional.id", given.get("name").asText());
        StringSerializer text = new StringSerializer();
        try (KafkaProducer<String, String> producer = new KafkaProducer<>(settings, text, text)) {
            producer.initTransactions();
            int number = 0;
            for (JsonNode commits : given.get("outcomes")) {
                producer.beginTransaction();
                producer.send(new ProducerRecord<>(given.get("topic").asText(), 0, null, "" + number++));
                producer.flush();
                if (commits.asBoolean()) {
                    producer.commitTransaction();
                } else {
                    producer.abortTransaction();
                }
            }
        }
        return null;
    }

    private static Object readCommitted(JsonNode given) {
        Map<String, Object> settings = new HashMap<>();
        settings.put("bootstrap.servers", given.get("bootstrap").asText());
        settings.put("isolation.level", "read_committed");
        StringDeserializer text = new StringDeserializer();
        List<Object> found = new ArrayList<>();
        try (KafkaConsumer<String, String> consumer = new KafkaConsumer<>(settings, text, text)) {
            TopicPartition partition = new TopicPartition(given.get("topic").asText(), 0);
            consumer.assign(List.of(partition));
            consumer.seek(partition, 0);
            while (found.size() < given.get("count").asInt()) {
                for (ConsumerRecord<String, String> each : consumer.poll(Duration.ofSeconds(1))) {
                    found.add(List.of(each.offset(), each.value()));
                }
            }
        }
        return found;
    }

    /** Sets how the clients of further requests connect. Key and certificate are in one file, as is a token. */
    private static Object secure(JsonNode given) throws Exception {
        SECURITY.clear();
        if (given.has("authority")) {
            SECURITY.put("ssl.truststore.type", "PEM");
            SECURITY.put("ssl.truststore.location", given.get("authority").asText());
        }
        if (given.has("certificate")) {
            SECURITY.put("ssl.keystore.type", "PEM");
            SECURITY.put("ssl.keystore.key", Files.readString(Path.of(given.get("key").asText())));
            SECURITY.put(
                "ssl.keystore.certificate.chain", Files.readString(Path.of(given.get("certificate").asText())));
        }
        if (given.has("protocol")) {
            SECURITY.put("security.protocol", given.get("protocol").asText());
        }
        if (given.has("mechanism")) {
            SECURITY.put("sasl.mechanism", given.get("mechanism").asText());
            SECURITY.put("sasl.jaas.config", given.has("token") ? tokenLogin(given) : passwordLogin(given));
        }
        return null;
    }

    private static String passwordLogin(JsonNode given) {
        String module = given.get("mechanism").asText().equals("PLAIN") ? "plain.Plain" : "scram.Scram";
        return "org.apache.kafka.common.security." + module + "LoginModule required username="
            + quoted(given.get("username")) + " password=" + quoted(given.get("password")) + ";";
    }

    private static String tokenLogin(JsonNode given) throws Exception {
        Path file = Files.createTempFile("token", ".jwt");
        file.toFile().deleteOnExit();
        String url = Files.writeString(file, given.get("token").asText()).toUri().toString();
        System.setProperty("org.apache.kafka.sasl.oauthbearer.allowed.urls", url);
        System.setProperty("org.apache.kafka.sasl.oauthbearer.allowed.files", file.toString());
        SECURITY.put("sasl.oauthbearer.token.endpoint.url", url);
        SECURITY.put(
            "sasl.login.callback.handler.class",
            "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginCallbackHandler");
        return "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required;";
    }

    private static String quoted(JsonNode text) {
        return "\"" + text.asText().replace("\\", "\\\\").replace("\"", "\\\"") + "\"";
    }

    private static Object produce(JsonNode given) throws Exception {
        Map<String, Object> settings = new HashMap<>();
        settings.put("bootstrap.servers", given.get("bootstrap").asText());
        settings.put("compression.type", given.get("codec").asText());
        settings.put("acks", given.get("acks").asText());
        settings.put("enable.idempotence", given.get("idempotent").asBoolean());
        settings.putAll(SECURITY);
        StringSerializer text = new StringSerializer();
        try (KafkaProducer<String, String> producer = new KafkaProducer<>(settings, text, text)) {
            List<Future<RecordMetadata>> sent = new ArrayList<>();
            for (JsonNode each : given.get("values")) {
                String value = each.asText();
                sent.add(producer.send(new ProducerRecord<>(given.get("topic").asText(), 0, value, value)));
            }
            for (Future<RecordMetadata> each : sent) {
                each.get();
            }
        }
        return null;
    }

    /** A member of the classic protocol sets its session timeout. */
    private static KafkaConsumer<String, String> consumer(JsonNode given, String group, String protocol) {
        Map<String, Object> settings = new HashMap<>();
        settings.put("bootstrap.servers", given.get("bootstrap").asText());
        settings.put("group.id", group);
        settings.put("group.protocol", protocol);
        settings.put("auto.offset.reset", "earliest");
        settings.put("enable.auto.commit", false);
        settings.putAll(SECURITY);
        if (protocol.equals("classic") && given.has("session")) {
            settings.put("session.timeout.ms", given.get("session").asInt());
            settings.put("heartbeat.interval.ms", 200);
        }
        StringDeserializer text = new StringDeserializer();
        return new KafkaConsumer<>(settings, text, text);
    }

    private static Object bounds(JsonNode given) {
        TopicPartition place = new TopicPartition(given.get("topic").asText(), 0);
        try (KafkaConsumer<String, String> consumer = consumer(given, "unused", protocol)) {
            return List.of(
                consumer.beginningOffsets(List.of(place)).get(place),
                consumer.endOffsets(List.of(place)).get(place),
                consumer.offsetsForTimes(Map.of(place, given.get("timestamp").asLong())).get(place).offset());
        }
    }

    private static Object read(JsonNode given) {
        TopicPartition place = new TopicPartition(given.get("topic").asText(), 0);
        List<Object> found = new ArrayList<>();
        try (KafkaConsumer<String, String> consumer = consumer(given, given.get("group").asText(), protocol)) {
            consumer.assign(List.of(place));
            consumer.seek(place, given.get("offset").asLong());
            while (found.size() < given.get("count").asInt()) {
                for (ConsumerRecord<String, String> each : consumer.poll(Duration.ofSeconds(1))) {
                    found.add(List.of(each.offset(), each.value()));
                }
            }
        }
        return found;
    }

    private static Object administer(JsonNode given) throws Exception {
        String topic = given.get("topic").asText();
        try (Admin admin = Admin.create(Map.of("bootstrap.servers", given.get("bootstrap").asText()))) {
            NewTopic wanted = new NewTopic(topic, 2, (short) 1).configs(Map.of("cleanup.policy", "compact"));
            admin.createTopics(List.of(wanted)).all().get();
            admin.createPartitions(Map.of(topic, NewPartitions.increaseTo(3))).all().get();
            ConfigResource resource = new ConfigResource(ConfigResource.Type.TOPIC, topic);
            AlterConfigOp change =
                new AlterConfigOp(new ConfigEntry("retention.ms", "1000"), AlterConfigOp.OpType.SET);
            admin.incrementalAlterConfigs(Map.of(resource, List.of(change))).all().get();
            String retention =
                admin.describeConfigs(List.of(resource)).all().get().get(resource).get("retention.ms").value();
            int partitions =
                admin.describeTopics(List.of(topic)).allTopicNames().get().get(topic).partitions().size();
            boolean listed = admin.listTopics().names().get().contains(topic);
            admin.deleteTopics(List.of(topic)).all().get();
            return Map.of("partitions", partitions, "retention", retention, "listed", listed);
        }
    }

    /** A member that polls and commits in a thread. */
    private static final class Member implements Runnable {
        final Thread thread = new Thread(this);
        private final List<Object> records = Collections.synchronizedList(new ArrayList<>());
        private final KafkaConsumer<String, String> consumer;
        private volatile int assigned;
        private volatile boolean leaving;
        private volatile Throwable failure;

        Member(JsonNode given) {
            consumer = consumer(given, given.get("group").asText(), protocol);
            consumer.subscribe(List.of(given.get("topic").asText()));
        }

        @Override
        public void run() {
            try {
                work();
            } catch (Throwable anything) {
                failure = anything;
            }
        }

        private void work() {
            while (!leaving) {
                try {
                    pollAndCommit();
                } catch (CommitFailedException | RebalanceInProgressException | RetriableException rebalance) {
                    System.err.println(rebalance); // the records are read again
                } catch (UnknownMemberIdException | StaleMemberEpochException fenced) {
                    System.err.println(fenced); // in OffsetFetch; the next heartbeat makes it rejoin
                }
            }
            consumer.close();
        }

        private void pollAndCommit() {
            Iterable<ConsumerRecord<String, String>> polled = consumer.poll(Duration.ofMillis(100));
            assigned = consumer.assignment().size();
            for (ConsumerRecord<String, String> each : polled) {
                records.add(List.of(each.partition(), each.offset(), each.value()));
            }
            consumer.commitSync();
        }

        private void check() {
            if (failure != null) {
                throw new IllegalStateException("the member has died", failure);
            }
        }

        Object seen() {
            check();
            synchronized (records) {
                return Map.of("assigned", assigned, "records", new ArrayList<>(records));
            }
        }

        void leave() throws InterruptedException {
            leaving = true;
            thread.join();
            check();
        }
    }
}
