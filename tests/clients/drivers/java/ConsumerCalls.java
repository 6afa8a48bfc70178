import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.JsonNodeFactory;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Collection;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import org.apache.kafka.clients.consumer.CloseOptions;
import org.apache.kafka.clients.consumer.ConsumerConfig;
import org.apache.kafka.clients.consumer.ConsumerRebalanceListener;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;

/** The operations on a consumer. */
final class ConsumerCalls implements Driver.Handle, ConsumerRebalanceListener {
    private static final int TIMEOUT_MS = 60_000;
    private static final int HEARTBEAT_MS = 200;
    private static final JsonNodeFactory NODES = Driver.JSON.getNodeFactory();

    final KafkaConsumer<byte[], byte[]> consumer;
    /** What the listener heard and nobody asked for yet: [what, [[topic, partition], ...]] each. */
    private ArrayNode rebalances = NODES.arrayNode();

    ConsumerCalls(JsonNode request) {
        int maxWaitMs = request.get("max_wait_ms").asInt();
        boolean classic = !request.path("config").path("group.protocol").asText().equals("consumer");
        Map<String, Object> settings = new HashMap<>();
        settings.put(ConsumerConfig.BOOTSTRAP_SERVERS_CONFIG, request.get("bootstrap").asText());
        settings.put(ConsumerConfig.ISOLATION_LEVEL_CONFIG, request.get("isolation").asText());
        settings.put(ConsumerConfig.ENABLE_AUTO_COMMIT_CONFIG, false);
        settings.put(ConsumerConfig.AUTO_OFFSET_RESET_CONFIG, "earliest");
        settings.put(ConsumerConfig.FETCH_MAX_WAIT_MS_CONFIG, maxWaitMs);
        settings.put(ConsumerConfig.DEFAULT_API_TIMEOUT_MS_CONFIG, TIMEOUT_MS);
        // A fetch may wait for longer than other requests.
        settings.put(ConsumerConfig.REQUEST_TIMEOUT_MS_CONFIG, maxWaitMs + 30_000);
        if (!request.get("group").isNull()) {
            settings.put(ConsumerConfig.GROUP_ID_CONFIG, request.get("group").asText());
            if (classic) {
                // In the new protocol both are the broker's to say, and refused here.
                settings.put(ConsumerConfig.SESSION_TIMEOUT_MS_CONFIG, request.get("session_timeout_ms").asInt());
                settings.put(ConsumerConfig.HEARTBEAT_INTERVAL_MS_CONFIG, HEARTBEAT_MS);
            }
        }
        if (!request.get("instance_id").isNull()) {
            settings.put(ConsumerConfig.GROUP_INSTANCE_ID_CONFIG, request.get("instance_id").asText());
        }
        Driver.configure(settings, request);
        consumer = new KafkaConsumer<>(settings, new ByteArrayDeserializer(), new ByteArrayDeserializer());
    }

    @Override
    public void onPartitionsAssigned(Collection<TopicPartition> partitions) {
        rebalances.addArray().add("assigned").add(pairs(partitions));
    }

    @Override
    public void onPartitionsRevoked(Collection<TopicPartition> partitions) {
        rebalances.addArray().add("revoked").add(pairs(partitions));
    }

    @Override
    public void onPartitionsLost(Collection<TopicPartition> partitions) {
        rebalances.addArray().add("lost").add(pairs(partitions));
    }

    @Override
    public JsonNode call(String op, JsonNode request, Driver driver) throws Exception {
        switch (op) {
            case "assign" -> assign(request);
            case "subscribe" -> consumer.subscribe(List.of(request.get("topic").asText()), this);
            case "rebalances" -> {
                ArrayNode told = rebalances;
                rebalances = NODES.arrayNode();
                return told;
            }
            case "seek" -> consumer.seek(partition(request), request.get("offset").asLong());
            case "poll" -> {
                return poll(request.get("timeout_s").asDouble());
            }
            case "position" -> {
                return NODES.numberNode(consumer.position(partition(request)));
            }
            case "commit" -> consumer.commitSync(offsets(request.get("offsets")));
            case "committed" -> {
                TopicPartition wanted = partition(request);
                OffsetAndMetadata found = consumer.committed(Set.of(wanted)).get(wanted);
                return found == null ? null : NODES.numberNode(found.offset());
            }
            case "assignment" -> {
                return pairs(consumer.assignment());
            }
            case "begin_and_end" -> {
                TopicPartition wanted = partition(request);
                List<TopicPartition> only = List.of(wanted);
                return NODES.arrayNode()
                        .add(consumer.beginningOffsets(only).get(wanted))
                        .add(consumer.endOffsets(only).get(wanted));
            }
            case "close" -> consumer.close(CloseOptions.timeout(Duration.ofSeconds(5)));
            default -> throw new IllegalArgumentException("a consumer has no " + op);
        }
        return null;
    }

    private void assign(JsonNode request) {
        List<TopicPartition> wanted = new ArrayList<>();
        request.get("partitions").forEach(each -> wanted.add(partition(each)));
        consumer.assign(wanted);
        if (!request.get("from_committed").asBoolean()) {
            consumer.seekToBeginning(wanted);
        }
    }

    private ArrayNode poll(double timeoutS) {
        ArrayNode found = NODES.arrayNode();
        for (ConsumerRecord<byte[], byte[]> record : consumer.poll(Duration.ofMillis((long) (timeoutS * 1000)))) {
            ObjectNode node = found.addObject()
                    .put("topic", record.topic())
                    .put("partition", record.partition())
                    .put("offset", record.offset())
                    .put("key", record.key())
                    .put("value", record.value());
            ArrayNode headers = node.putArray("headers");
            for (Header header : record.headers()) {
                headers.addArray().add(header.key()).add(header.value());
            }
        }
        return found;
    }

    private static TopicPartition partition(JsonNode request) {
        return request.isArray()
                ? new TopicPartition(request.get(0).asText(), request.get(1).asInt())
                : new TopicPartition(request.get("topic").asText(), request.get("partition").asInt());
    }

    private static ArrayNode pairs(Collection<TopicPartition> partitions) {
        ArrayNode pairs = NODES.arrayNode();
        partitions.forEach(each -> pairs.addArray().add(each.topic()).add(each.partition()));
        return pairs;
    }

    /** [[topic, partition, offset], ...] as this client wants it. */
    static Map<TopicPartition, OffsetAndMetadata> offsets(JsonNode triples) {
        Map<TopicPartition, OffsetAndMetadata> offsets = new HashMap<>();
        triples.forEach(each -> offsets.put(partition(each), new OffsetAndMetadata(each.get(2).asLong())));
        return offsets;
    }
}
