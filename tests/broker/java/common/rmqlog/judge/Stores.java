package rmqlog.judge;

import com.google.gson.JsonArray;
import com.google.gson.JsonElement;
import com.google.gson.JsonObject;
import com.google.gson.JsonParser;
import java.io.IOException;
import java.io.Reader;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.Paths;
import java.security.MessageDigest;
import java.util.ArrayList;
import java.util.Comparator;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.stream.Collectors;
import java.util.stream.Stream;
import org.apache.rocketmq.common.MixAll;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.store.DefaultMessageStore;
import org.apache.rocketmq.store.PutMessageResult;
import org.apache.rocketmq.store.SelectMappedBufferResult;
import org.apache.rocketmq.store.config.MessageStoreConfig;

/** Whole stores, opened by the real DefaultMessageStore in this process. */
final class Stores {
    private static final Line LINE = new ThisLine();
    /** A stop sleeps for seconds, so many stores are opened at once. */
    private static final int STORES_AT_ONCE = 60;
    private static final long DISPATCH_LIMIT_MS = 120_000;
    /** More matches of a key than any store of the tests has; RocketMQ allocates them at once. */
    private static final int KEY_MATCHES_MAX = 100_000;

    private Stores() {
    }

    static void register(Map<String, Driver.Command> commands) {
        commands.put("open", Stores::open);
        commands.put("put", Stores::put);
    }

    /** Settings by RocketMQ's own names over its defaults; no cleaning, any free HA port. */
    static MessageStoreConfig config(Path root, JsonObject settings) {
        MessageStoreConfig config = new MessageStoreConfig();
        config.setStorePathRootDir(root.toString());
        config.setStorePathCommitLog(root.resolve("commitlog").toString());
        config.setHaListenPort(0);
        config.setFileReservedTime(24 * 365 * 100);
        config.setMaxMsgsNumBatch(KEY_MATCHES_MAX); // 64 by default
        Properties properties = new Properties();
        for (Map.Entry<String, JsonElement> entry : settings.entrySet()) {
            properties.setProperty(entry.getKey(), entry.getValue().getAsString());
        }
        MixAll.properties2Object(properties, config);
        return config;
    }

    /** A store that is loaded, started and completely dispatched. */
    static DefaultMessageStore started(Path root, JsonObject settings) throws Exception {
        DefaultMessageStore store = newStore(root, settings);
        try {
            if (!store.load()) {
                throw new IllegalStateException("load() refused " + root);
            }
            store.start();
            LINE.holdDelayedMessages(store);
            awaitDispatch(store);
        } catch (Exception failure) {
            stop(store);
            throw failure;
        }
        return store;
    }

    /** One at a time: the constructor registers things in static maps. */
    private static synchronized DefaultMessageStore newStore(Path root, JsonObject settings)
        throws IOException {
        return LINE.newStore(config(root, settings), topicAttributes(root));
    }

    /** Stops a store in order, and the statistics that were made for it: five threads a store. */
    static void stop(DefaultMessageStore store) {
        store.shutdown();
        store.getBrokerStatsManager().shutdown();
    }

    static void awaitDispatch(DefaultMessageStore store) throws InterruptedException {
        long deadline = System.currentTimeMillis() + DISPATCH_LIMIT_MS;
        while (store.dispatchBehindBytes() > 0) {
            if (System.currentTimeMillis() > deadline) {
                throw new IllegalStateException(
                    store.dispatchBehindBytes() + " bytes are still not dispatched");
            }
            Thread.sleep(1);
        }
    }

    /**
     * Opens each of {@code stores}, lets it recover and dispatch, tells what it holds and stops it
     * in order, so that its files can be compared. With {@code messages} every message is listed,
     * else each queue has a SHA-256 of its records; {@code keys} ([topic, key]) are looked up.
     */
    private static JsonElement open(JsonObject request) throws Exception {
        ExecutorService pool = Executors.newFixedThreadPool(STORES_AT_ONCE);
        try {
            List<Future<JsonObject>> opened = new ArrayList<>();
            for (JsonElement path : request.getAsJsonArray("stores")) {
                opened.add(pool.submit(() -> openOne(path.getAsString(), request)));
            }
            JsonArray answers = new JsonArray();
            for (Future<JsonObject> future : opened) {
                answers.add(future.get());
            }
            return answers;
        } finally {
            pool.shutdown();
        }
    }

    private static JsonObject openOne(String path, JsonObject request) {
        JsonObject answer = new JsonObject();
        answer.addProperty("store", path);
        try {
            DefaultMessageStore store =
                started(Paths.get(path), request.getAsJsonObject("settings"));
            try {
                describe(store, request, answer);
            } finally {
                stop(store);
            }
        } catch (Exception failure) {
            failure.printStackTrace();
            answer.addProperty("error", failure.toString());
        }
        return answer;
    }

    private static void describe(DefaultMessageStore store, JsonObject request, JsonObject answer)
        throws Exception {
        answer.addProperty("minPhyOffset", store.getMinPhyOffset());
        answer.addProperty("maxPhyOffset", store.getMaxPhyOffset());
        JsonArray queues = new JsonArray();
        for (Line.Queue queue : LINE.queues(store)) {
            queues.add(queue(store, queue, Messages.bool(request, "messages", false)));
        }
        answer.add("queues", queues);
        if (request.has("keys")) {
            JsonArray offsets = new JsonArray();
            for (JsonElement key : request.getAsJsonArray("keys")) {
                offsets.add(lookUp(store, key.getAsJsonArray()));
            }
            answer.add("keyOffsets", offsets);
        }
    }

    private static JsonArray lookUp(DefaultMessageStore store, JsonArray topicAndKey) {
        JsonArray offsets = new JsonArray();
        StoreIndex.of(store).queryOffset(topicAndKey.get(0).getAsString(),
            topicAndKey.get(1).getAsString(), KEY_MATCHES_MAX, 0, Long.MAX_VALUE)
            .getPhyOffsets().forEach(offsets::add);
        return offsets;
    }

    private static JsonObject queue(
        DefaultMessageStore store, Line.Queue queue, boolean withMessages) throws Exception {
        JsonObject json = new JsonObject();
        json.addProperty("topic", queue.topic);
        json.addProperty("queueId", queue.queueId);
        json.addProperty("minOffset", queue.minOffset);
        json.addProperty("maxOffset", queue.maxOffset);
        JsonArray units = new JsonArray();
        JsonArray messages = new JsonArray();
        MessageDigest digest = MessageDigest.getInstance("SHA-256");
        for (Line.Unit unit : LINE.units(store, queue)) {
            JsonArray fields = new JsonArray();
            fields.add(unit.queueOffset);
            fields.add(unit.commitLogOffset);
            fields.add(unit.size);
            fields.add(unit.tagsCode);
            units.add(fields);
            ByteBuffer record = record(store, unit);
            digest.update(record.duplicate());
            if (withMessages) {
                MessageExt message = LINE.decode(record, true, false);
                messages.add(message == null ? null : Messages.toJson(message));
            }
        }
        json.add("units", units);
        json.addProperty("sha256", hex(digest.digest()));
        if (withMessages) {
            json.add("messages", messages);
        }
        return json;
    }

    private static ByteBuffer record(DefaultMessageStore store, Line.Unit unit) {
        SelectMappedBufferResult found =
            store.getCommitLog().getMessage(unit.commitLogOffset, unit.size);
        if (found == null) {
            return ByteBuffer.allocate(0); // retention took the record, or the unit is damaged
        }
        try {
            byte[] bytes = new byte[unit.size];
            found.getByteBuffer().get(bytes);
            return ByteBuffer.wrap(bytes);
        } finally {
            found.release();
        }
    }

    private static String hex(byte[] bytes) {
        StringBuilder text = new StringBuilder();
        for (byte value : bytes) {
            text.append(String.format("%02x", value));
        }
        return text.toString();
    }

    /** Appends {@code messages} to {@code store} through putMessage; where each one went. */
    private static JsonElement put(JsonObject request) throws Exception {
        DefaultMessageStore store = started(Paths.get(request.get("store").getAsString()),
            request.getAsJsonObject("settings"));
        JsonArray answers = new JsonArray();
        try {
            for (JsonElement specification : request.getAsJsonArray("messages")) {
                PutMessageResult result = LINE.put(store,
                    Messages.storeMessageFromJson(specification.getAsJsonObject()));
                JsonObject answer = new JsonObject();
                answer.addProperty("status", result.getPutMessageStatus().name());
                if (result.getAppendMessageResult() != null) {
                    answer.addProperty("queueOffset",
                        result.getAppendMessageResult().getLogicsOffset());
                    answer.addProperty("commitLogOffset",
                        result.getAppendMessageResult().getWroteOffset());
                    answer.addProperty("storeSize",
                        result.getAppendMessageResult().getWroteBytes());
                }
                answers.add(answer);
            }
            awaitDispatch(store);
        } finally {
            stop(store);
        }
        return answers;
    }

    /** Attributes of the topics in config/topics.json: they say which queues are batch queues. */
    private static Map<String, Map<String, String>> topicAttributes(Path root)
        throws IOException {
        Map<String, Map<String, String>> attributes = new HashMap<>();
        Path file = root.resolve("config").resolve("topics.json");
        if (!Files.exists(file)) {
            return attributes;
        }
        try (Reader reader = Files.newBufferedReader(file, StandardCharsets.UTF_8)) {
            JsonObject topics = JsonParser.parseReader(reader).getAsJsonObject()
                .getAsJsonObject("topicConfigTable");
            for (Map.Entry<String, JsonElement> topic : topics.entrySet()) {
                Map<String, String> ofTopic = new HashMap<>();
                JsonElement named = topic.getValue().getAsJsonObject().get("attributes");
                if (named != null) {
                    named.getAsJsonObject().entrySet().forEach(
                        entry -> ofTopic.put(entry.getKey(), entry.getValue().getAsString()));
                }
                attributes.put(topic.getKey(), ofTopic);
            }
        }
        return attributes;
    }

    static void deleteAtExit(Path root) {
        Runtime.getRuntime().addShutdownHook(new Thread(() -> deleteTree(root)));
    }

    static void deleteTree(Path root) {
        try (Stream<Path> paths = Files.walk(root)) {
            for (Path path : paths.sorted(Comparator.reverseOrder()).collect(Collectors.toList())) {
                Files.delete(path);
            }
        } catch (IOException left) {
            System.err.println("could not delete " + root + ": " + left);
        }
    }
}
