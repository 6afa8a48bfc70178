import com.fasterxml.jackson.databind.JsonNode;
import java.io.IOException;
import java.time.Duration;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.Future;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerConfig;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/** The operations on a producer. */
final class ProducerCalls implements Driver.Handle {
    private static final int TIMEOUT_MS = 60_000;

    private final KafkaProducer<byte[], byte[]> producer;
    private List<Future<RecordMetadata>> sent = new ArrayList<>();
    /** What send() threw instead of giving a future. */
    private RuntimeException refused;

    ProducerCalls(JsonNode request) {
        Map<String, Object> settings = new HashMap<>();
        settings.put(ProducerConfig.BOOTSTRAP_SERVERS_CONFIG, request.get("bootstrap").asText());
        settings.put(ProducerConfig.ENABLE_IDEMPOTENCE_CONFIG, request.get("idempotent").asBoolean());
        settings.put(ProducerConfig.COMPRESSION_TYPE_CONFIG, request.get("compression").asText());
        settings.put(ProducerConfig.ACKS_CONFIG, "all");
        settings.put(ProducerConfig.LINGER_MS_CONFIG, 2);
        settings.put(ProducerConfig.MAX_BLOCK_MS_CONFIG, TIMEOUT_MS);
        settings.put(ProducerConfig.DELIVERY_TIMEOUT_MS_CONFIG, TIMEOUT_MS);
        if (!request.get("transactional_id").isNull()) {
            settings.put(ProducerConfig.TRANSACTIONAL_ID_CONFIG, request.get("transactional_id").asText());
            settings.put(ProducerConfig.TRANSACTION_TIMEOUT_CONFIG, request.get("transaction_timeout_ms").asInt());
        }
        Driver.configure(settings, request);
        producer = new KafkaProducer<>(settings, new ByteArraySerializer(), new ByteArraySerializer());
    }

    @Override
    public JsonNode call(String op, JsonNode request, Driver driver) throws Exception {
        switch (op) {
            case "init_transactions" -> producer.initTransactions();
            case "begin" -> producer.beginTransaction();
            case "send" -> send(request);
            case "flush" -> flush();
            case "send_offsets" -> {
                ConsumerCalls consumer = (ConsumerCalls) driver.handle(request.get("consumer").asInt());
                producer.sendOffsetsToTransaction(
                        ConsumerCalls.offsets(request.get("offsets")), consumer.consumer.groupMetadata());
            }
            case "commit" -> {
                producer.commitTransaction();
                raiseFirst();
            }
            case "abort" -> {
                sent.clear();
                refused = null;
                producer.abortTransaction();
            }
            case "close" -> producer.close(Duration.ofSeconds(5));
            default -> throw new IllegalArgumentException("a producer has no " + op);
        }
        return null;
    }

    private void send(JsonNode request) throws IOException {
        ProducerRecord<byte[], byte[]> record = new ProducerRecord<>(
                request.get("topic").asText(),
                request.get("partition").asInt(),
                request.get("key").binaryValue(),
                request.get("value").binaryValue());
        for (JsonNode header : request.get("headers")) {
            record.headers().add(header.get(0).asText(), header.get(1).binaryValue());
        }
        try {
            sent.add(producer.send(record));
        } catch (RuntimeException error) {
            refused = refused == null ? error : refused;
        }
    }

    private void flush() throws Exception {
        producer.flush();
        raiseFirst();
    }

    /** All that was sent has its answer by now: raise the first failure, and forget them all. */
    private void raiseFirst() throws Exception {
        List<Future<RecordMetadata>> answered = sent;
        RuntimeException first = refused;
        sent = new ArrayList<>();
        refused = null;
        for (Future<RecordMetadata> future : answered) {
            try {
                future.get();
            } catch (ExecutionException failed) {
                throw (Exception) failed.getCause();
            }
        }
        if (first != null) {
            throw first;
        }
    }
}
