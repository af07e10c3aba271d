import java.io.BufferedReader;
import java.io.ByteArrayOutputStream;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Method;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CyclicBarrier;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;

import org.apache.kafka.common.utils.Exit;

/**
 * Runs one of Kafka's tools several times at once, in threads of a process that lives on.
 *
 * A request is a line of JSON: the name of a class, and a list of arguments for each thread. The response is a
 * line of JSON with everything that the tools have printed, and a list of errors.
 */
public final class Loads {
    private static final ObjectMapper JSON = new ObjectMapper();

    /** A tool has called exit. */
    private static final class Ended extends Error {
        final int status;

        Ended(int status) {
            super("exit " + status, null, false, false);
            this.status = status;
        }
    }

    public static void main(String[] none) throws Exception {
        PrintStream responses = System.out;
        Exit.setExitProcedure((status, message) -> {
            throw new Ended(status);
        });
        BufferedReader requests = new BufferedReader(new InputStreamReader(System.in));
        for (String line = requests.readLine(); line != null; line = requests.readLine()) {
            JsonNode request = JSON.readTree(line);
            ByteArrayOutputStream output = new ByteArrayOutputStream();
            PrintStream to = new PrintStream(output, true, StandardCharsets.UTF_8);
            System.setOut(to);
            System.setErr(to);
            List<String> errors = run(request.get("class").asText(), request.get("clients"));
            responses.println(JSON.writeValueAsString(
                Map.of("output", output.toString(StandardCharsets.UTF_8), "errors", errors)));
            responses.flush();
            System.gc(); // before the next load, not during it
        }
        Runtime.getRuntime().halt(0);
    }

    private static List<String> run(String name, JsonNode clients) throws Exception {
        Method tool = Class.forName(name).getMethod("main", String[].class);
        List<String> errors = new ArrayList<>();
        CyclicBarrier begin = new CyclicBarrier(clients.size());
        List<Thread> threads = new ArrayList<>();
        for (JsonNode client : clients) {
            List<String> words = new ArrayList<>();
            client.forEach(each -> words.add(each.asText()));
            Thread thread = new Thread(() -> {
                try {
                    begin.await();
                    tool.invoke(null, (Object) words.toArray(new String[0]));
                } catch (Throwable error) {
                    Throwable cause = error instanceof InvocationTargetException ? error.getCause() : error;
                    if (!(cause instanceof Ended ended && ended.status == 0)) {
                        synchronized (errors) {
                            errors.add(cause.toString());
                        }
                    }
                }
            });
            threads.add(thread);
            thread.start();
        }
        for (Thread thread : threads) {
            thread.join();
        }
        return errors;
    }
}
