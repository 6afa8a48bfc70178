import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.HashMap;
import java.util.Map;
import org.apache.kafka.common.errors.InvalidProducerEpochException;
import org.apache.kafka.common.errors.ProducerFencedException;

/** Serves the requests of tests/clients/driver_process.py with Apache Kafka's own client, one after the other. */
public final class Driver {
    static final ObjectMapper JSON = new ObjectMapper();

    /** A producer or a consumer. */
    interface Handle {
        /** The result of an operation, null if it has none. */
        JsonNode call(String op, JsonNode request, Driver driver) throws Exception;
    }

    private final Map<Integer, Handle> handles = new HashMap<>();
    private int lastHandle;

    public static void main(String[] args) throws IOException {
        PrintStream out = System.out;
        // Whatever else is printed must not get between the answers.
        System.setOut(System.err);
        Driver driver = new Driver();
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line; (line = in.readLine()) != null; ) {
            out.write((JSON.writeValueAsString(driver.answer(JSON.readTree(line))) + "\n")
                    .getBytes(StandardCharsets.UTF_8));
            out.flush();
        }
        // Not exit(): what is still open need not be closed in good order.
        Runtime.getRuntime().halt(0);
    }

    private ObjectNode answer(JsonNode request) {
        ObjectNode answer = JSON.createObjectNode().put("id", request.get("id").asInt());
        try {
            answer.set("result", serve(request));
            answer.put("ok", true);
        } catch (Exception error) {
            error.printStackTrace();
            answer.put("ok", false);
            answer.putObject("error")
                    .put("class", error.getClass().getSimpleName())
                    .put("message", messages(error))
                    .put("fenced", fenced(error));
        }
        return answer;
    }

    private JsonNode serve(JsonNode request) throws Exception {
        String op = request.get("op").asText();
        switch (op) {
            case "producer":
                return opened(new ProducerCalls(request));
            case "consumer":
                return opened(new ConsumerCalls(request));
            case "close":
                return handles.remove(request.get("handle").asInt()).call(op, request, this);
            default:
                return handle(request.get("handle").asInt()).call(op, request, this);
        }
    }

    private JsonNode opened(Handle handle) {
        handles.put(++lastHandle, handle);
        return JSON.getNodeFactory().numberNode(lastHandle);
    }

    Handle handle(int number) {
        Handle handle = handles.get(number);
        if (handle == null) {
            throw new IllegalArgumentException("no handle " + number);
        }
        return handle;
    }

    /** The client's settings by the request's own `config`, which goes before everything else. */
    static void configure(Map<String, Object> settings, JsonNode request) {
        JsonNode config = request.path("config");
        config.fieldNames().forEachRemaining(name -> settings.put(name, config.get(name).asText()));
    }

    private static String messages(Throwable error) {
        StringBuilder text = new StringBuilder(String.valueOf(error.getMessage()));
        for (Throwable cause = error.getCause(); cause != null; cause = cause.getCause()) {
            text.append(" <- ").append(cause.getClass().getSimpleName()).append(": ").append(cause.getMessage());
        }
        return text.toString();
    }

    /** A write of a fenced producer is told INVALID_PRODUCER_EPOCH; this client hands that on until it aborts. */
    private static boolean fenced(Throwable error) {
        for (Throwable cause = error; cause != null; cause = cause.getCause()) {
            if (cause instanceof ProducerFencedException || cause instanceof InvalidProducerEpochException) {
                return true;
            }
        }
        return false;
    }
}
