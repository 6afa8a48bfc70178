import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/**
 * Puts load on brokers, in one JVM for a whole workload: a JSON request per line on stdin, a JSON answer per line on
 * stdout. Whichever system a request names meets the same warmed-up client.
 */
public final class Load {
    static final ObjectMapper JSON = new ObjectMapper();

    private interface Op {
        void run(JsonNode request, ObjectNode answer) throws Exception;
    }

    private static final Map<String, Op> OPS = Map.of(
            "topic", Load::topic,
            "turns", Turns::run,
            "concurrent", Concurrent::run,
            "end_to_end", EndToEnd::run,
            "stream", Stream::run,
            "consume", Consume::run,
            "first", First::run);

    public static void main(String[] args) throws IOException {
        PrintStream out = System.out;
        System.setOut(System.err);
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line; (line = in.readLine()) != null; ) {
            ObjectNode answer = JSON.createObjectNode();
            try {
                JsonNode request = JSON.readTree(line);
                OPS.get(request.get("op").asText()).run(request, answer);
            } catch (Exception error) {
                error.printStackTrace();
                answer.put("error", error.toString());
            }
            out.write((JSON.writeValueAsString(answer) + "\n").getBytes(StandardCharsets.UTF_8));
            out.flush();
        }
        Runtime.getRuntime().halt(0);
    }

    /** A topic, there and with a leader when this returns. */
    private static void topic(JsonNode request, ObjectNode answer) throws Exception {
        String name = request.get("topic").asText();
        Properties settings = base(request);
        try (Admin admin = Admin.create(settings)) {
            NewTopic topic = new NewTopic(name, request.get("partitions").asInt(), (short) request.path("replication").asInt(1));
            admin.createTopics(List.of(topic)).all().get(60, TimeUnit.SECONDS);
            for (boolean ready = false; !ready; ) {
                try {
                    ready = admin.describeTopics(List.of(name)).allTopicNames().get().get(name).partitions().stream()
                            .allMatch(partition -> partition.leader() != null && !partition.leader().isEmpty());
                } catch (ExecutionException error) {
                    ready = false; // not known everywhere yet
                }
                if (!ready) {
                    Thread.sleep(10);
                }
            }
        }
    }

    static Properties base(JsonNode request) {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", request.get("bootstrap").asText());
        return settings;
    }

    /** Settings of a producer: as the client's defaults are, but nothing lingers unless the request says so. */
    static Properties producer(JsonNode request, String transactionalId) {
        Properties settings = base(request);
        settings.put("key.serializer", ByteArraySerializer.class.getName());
        settings.put("value.serializer", ByteArraySerializer.class.getName());
        settings.put("acks", "all");
        settings.put("linger.ms", "0");
        if (transactionalId != null) {
            settings.put("transactional.id", transactionalId);
        }
        configure(settings, request);
        return settings;
    }

    static Properties consumer(JsonNode request) {
        Properties settings = base(request);
        settings.put("key.deserializer", ByteArrayDeserializer.class.getName());
        settings.put("value.deserializer", ByteArrayDeserializer.class.getName());
        settings.put("isolation.level", "read_committed");
        settings.put("enable.auto.commit", "false");
        configure(settings, request);
        return settings;
    }

    private static void configure(Properties settings, JsonNode request) {
        JsonNode config = request.path("config");
        config.fieldNames().forEachRemaining(name -> settings.put(name, config.get(name).asText()));
    }

    private Load() {}
}
