import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.util.ArrayList;
import java.util.List;
import java.util.UUID;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;

/**
 * One producer, one turn after the other, a record to each of some partitions; the time of each turn in microseconds.
 *
 * <p>"plain": send and flush, idempotent. "txn": begin, send, commit. "commit": the commit call alone, after the
 * records of its transaction have been acknowledged. The modes take turns, so that the machine's moods meet all of them.
 */
final class Turns {
    private final String topic;
    private final int partitions;
    private final byte[] value;
    private final KafkaProducer<byte[], byte[]> plain;
    private final KafkaProducer<byte[], byte[]> transactional;

    private Turns(JsonNode request) {
        topic = request.get("topic").asText();
        partitions = request.get("partitions").asInt();
        value = new byte[request.path("record_bytes").asInt(1024)];
        plain = new KafkaProducer<>(Load.producer(request, null));
        String id = request.path("transactional_id").asText("bench-" + UUID.randomUUID());
        transactional = new KafkaProducer<>(Load.producer(request, id));
    }

    static void run(JsonNode request, ObjectNode answer) {
        Turns turns = new Turns(request);
        List<String> modes = new ArrayList<>();
        request.get("modes").forEach(mode -> modes.add(mode.asText()));
        int warmup = request.get("warmup").asInt();
        int count = request.get("turns").asInt();
        long pauseMicros = request.path("pause_us").asLong(0);
        List<ArrayNode> taken = new ArrayList<>();
        modes.forEach(mode -> taken.add(answer.putArray(mode)));
        ArrayNode began = answer.putArray("began_ms");
        try {
            turns.transactional.initTransactions();
            for (int turn = -warmup; turn < count; turn++) {
                for (int mode = 0; mode < modes.size(); mode++) {
                    long atMs = System.currentTimeMillis();
                    long micros = turns.turn(modes.get(mode)) / 1000;
                    if (turn >= 0) {
                        taken.get(mode).add(micros);
                        if (mode == 0) {
                            began.add(atMs);
                        }
                    }
                }
                if (pauseMicros > 0) {
                    java.util.concurrent.locks.LockSupport.parkNanos(pauseMicros * 1000);
                }
            }
        } finally {
            turns.plain.close();
            turns.transactional.close();
        }
    }

    private long turn(String mode) {
        long began = System.nanoTime();
        switch (mode) {
            case "plain":
                send(plain);
                plain.flush();
                break;
            case "txn":
                transactional.beginTransaction();
                send(transactional);
                transactional.commitTransaction();
                break;
            case "commit":
                transactional.beginTransaction();
                send(transactional);
                transactional.flush();
                began = System.nanoTime();
                transactional.commitTransaction();
                break;
            default:
                throw new IllegalArgumentException(mode);
        }
        return System.nanoTime() - began;
    }

    private void send(KafkaProducer<byte[], byte[]> producer) {
        for (int partition = 0; partition < partitions; partition++) {
            producer.send(new ProducerRecord<>(topic, partition, null, value), (metadata, error) -> {
                if (error != null) {
                    error.printStackTrace(); // of a transaction the commit says so, too
                    throw new IllegalStateException(error);
                }
            });
        }
    }
}
