package rmqlog.judge;

import com.google.gson.Gson;
import com.google.gson.GsonBuilder;
import com.google.gson.JsonElement;
import com.google.gson.JsonObject;
import com.google.gson.JsonParser;
import java.io.BufferedReader;
import java.io.FileDescriptor;
import java.io.FileOutputStream;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.Map;
import java.util.TreeMap;

/**
 * Answers questions about RocketMQ's own code: one JSON request a line on standard input, one JSON
 * answer a line on standard output, until standard input ends. One JVM serves many requests.
 */
public final class Driver {
    /** What one request does; {@code command} in the request names it. */
    interface Command {
        JsonElement run(JsonObject request) throws Exception;
    }

    private Driver() {
    }

    public static void main(String[] arguments) throws Exception {
        PrintStream answers = new PrintStream(
            new FileOutputStream(FileDescriptor.out), false, "UTF-8");
        System.setOut(System.err); // RocketMQ prints; only answers may reach standard output.
        Gson gson = new GsonBuilder().serializeNulls().disableHtmlEscaping().create();
        Map<String, Command> commands = commands();
        BufferedReader requests = new BufferedReader(
            new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = requests.readLine(); line != null; line = requests.readLine()) {
            answers.println(gson.toJson(answer(commands, line)));
            answers.flush();
        }
        System.exit(0); // RocketMQ leaves threads behind that are not daemons.
    }

    private static Map<String, Command> commands() {
        Map<String, Command> commands = new TreeMap<>();
        Decoding.register(commands);
        Stores.register(commands);
        StoreLock.register(commands);
        Benchmarks.register(commands);
        Client.register(commands);
        return commands;
    }

    private static JsonObject answer(Map<String, Command> commands, String line) {
        JsonObject answer = new JsonObject();
        try {
            JsonObject request = JsonParser.parseString(line).getAsJsonObject();
            Command command = commands.get(request.get("command").getAsString());
            if (command == null) {
                throw new IllegalArgumentException("unknown command; known: " + commands.keySet());
            }
            answer.add("result", command.run(request));
        } catch (Throwable failure) {
            failure.printStackTrace();
            answer.addProperty("error", failure.toString());
        }
        return answer;
    }
}
