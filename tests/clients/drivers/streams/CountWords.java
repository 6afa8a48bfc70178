import java.util.Properties;
import org.apache.kafka.clients.consumer.ConsumerConfig;
import org.apache.kafka.clients.producer.ProducerConfig;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.StreamsConfig;
import org.apache.kafka.streams.kstream.Consumed;
import org.apache.kafka.streams.kstream.Grouped;
import org.apache.kafka.streams.kstream.Materialized;
import org.apache.kafka.streams.kstream.Produced;

/**
 * How often did each word come? Every record of the input is a word; every one gives a record of the output, the word
 * and its count so far. The words go through a repartition topic, the counts are kept in a store with a changelog.
 *
 * <p>Arguments: bootstrap, application id, input, output, folder of the state. Runs until it is killed.
 */
public final class CountWords {
    public static void main(String[] args) throws InterruptedException {
        Properties settings = new Properties();
        settings.put(StreamsConfig.BOOTSTRAP_SERVERS_CONFIG, args[0]);
        settings.put(StreamsConfig.APPLICATION_ID_CONFIG, args[1]);
        settings.put(StreamsConfig.STATE_DIR_CONFIG, args[4]);
        settings.put(StreamsConfig.PROCESSING_GUARANTEE_CONFIG, StreamsConfig.EXACTLY_ONCE_V2);
        settings.put(StreamsConfig.NUM_STREAM_THREADS_CONFIG, 2);
        // Without a cache every count is handed on, so that one that is left out or comes twice shows.
        settings.put(StreamsConfig.STATESTORE_CACHE_MAX_BYTES_CONFIG, 0);
        settings.put(StreamsConfig.COMMIT_INTERVAL_MS_CONFIG, 300);
        settings.put(StreamsConfig.REPARTITION_PURGE_INTERVAL_MS_CONFIG, 1_000);
        settings.put(StreamsConfig.consumerPrefix(ConsumerConfig.SESSION_TIMEOUT_MS_CONFIG), 6_000);
        settings.put(StreamsConfig.consumerPrefix(ConsumerConfig.HEARTBEAT_INTERVAL_MS_CONFIG), 500);
        settings.put(StreamsConfig.consumerPrefix(ConsumerConfig.AUTO_OFFSET_RESET_CONFIG), "earliest");
        // Small bites: there is a commit, and a kill, in the middle of every backlog.
        settings.put(StreamsConfig.consumerPrefix(ConsumerConfig.MAX_POLL_RECORDS_CONFIG), 50);
        // Long, so that no test gets on because a transaction ran out of time.
        settings.put(StreamsConfig.producerPrefix(ProducerConfig.TRANSACTION_TIMEOUT_CONFIG), 300_000);

        StreamsBuilder builder = new StreamsBuilder();
        builder.stream(args[2], Consumed.with(Serdes.ByteArray(), Serdes.String()))
                .selectKey((key, word) -> word)
                .groupByKey(Grouped.with("words", Serdes.String(), Serdes.String()))
                .count(Materialized.as("counts"))
                .toStream()
                .mapValues(count -> Long.toString(count))
                .to(args[3], Produced.with(Serdes.String(), Serdes.String()));

        KafkaStreams streams = new KafkaStreams(builder.build(), settings);
        streams.setStateListener((now, before) -> {
            System.err.println("state " + before + " -> " + now);
            if (now == KafkaStreams.State.ERROR) {
                Runtime.getRuntime().halt(1);
            }
        });
        streams.setUncaughtExceptionHandler(error -> {
            error.printStackTrace();
            return org.apache.kafka.streams.errors.StreamsUncaughtExceptionHandler.StreamThreadExceptionResponse
                    .SHUTDOWN_CLIENT;
        });
        streams.start();
        Thread.currentThread().join();
    }
}
