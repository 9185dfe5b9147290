package rmqlog.judge;

import com.google.gson.JsonArray;
import com.google.gson.JsonElement;
import com.google.gson.JsonObject;
import java.nio.ByteBuffer;
import java.nio.channels.FileChannel;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.Paths;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.Map;
import java.util.function.LongSupplier;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.store.DefaultMessageStore;
import org.apache.rocketmq.store.PutMessageStatus;
import org.apache.rocketmq.store.config.MessageStoreConfig;
import org.apache.rocketmq.store.index.IndexService;

/**
 * RocketMQ's own speed, as the reference of rmqlog's benchmarks. Each answer holds the seconds of
 * every timed round, what was done (so that the other side can be shown to have done the same) and
 * the configuration.
 */
final class Benchmarks {
    private static final Line LINE = new ThisLine();
    private static final int ROUNDS = 5;

    private Benchmarks() {
    }

    static void register(Map<String, Driver.Command> commands) {
        commands.put("bench-decode", Benchmarks::decode);
        commands.put("bench-put", Benchmarks::put);
        commands.put("bench-query", Benchmarks::query);
        commands.put("bench-rebuild", Benchmarks::rebuild);
    }

    /** MessageDecoder over every record of the segment {@code file}. */
    private static JsonElement decode(JsonObject request) throws Exception {
        Path file = Paths.get(request.get("file").getAsString());
        boolean checkCrc = request.get("checkCrc").getAsBoolean();
        if (checkCrc && !LINE.choosesCrcCheck()) {
            throw new IllegalArgumentException("this line's MessageDecoder never checks the CRC");
        }
        JsonObject answer = new JsonObject();
        try (FileChannel channel = FileChannel.open(file)) {
            ByteBuffer segment =
                channel.map(FileChannel.MapMode.READ_ONLY, 0, channel.size());
            Totals totals = new Totals();
            decodeSegment(segment, checkCrc, totals);
            answer.addProperty("records", totals.records);
            answer.addProperty("bodyBytes", totals.bodyBytes);
            answer.addProperty("properties", totals.properties);
            rounds(request, answer, () -> timed(() -> {
                decodeSegment(segment, checkCrc, new Totals());
            }));
        }
        return withConfiguration(answer, null);
    }

    /** What a pass over a segment saw; summing it keeps the decoder's work alive. */
    private static final class Totals {
        long records;
        long bodyBytes;
        long properties;
    }

    private static void decodeSegment(ByteBuffer segment, boolean checkCrc, Totals totals) {
        segment.clear();
        while (segment.remaining() >= 8) {
            int start = segment.position();
            int size = segment.getInt(start);
            // A filler, or the zeros behind the end, is no message: the decoder's null ends it.
            MessageExt message = size <= 8 || size > segment.remaining()
                ? null : LINE.decode(segment, true, checkCrc);
            if (message == null) {
                return;
            }
            totals.records++;
            totals.bodyBytes += message.getBody() == null ? 0 : message.getBody().length;
            totals.properties +=
                message.getProperties() == null ? 0 : message.getProperties().size();
            segment.position(start + size);
        }
    }

    /**
     * putMessage from one thread, from the first put until the last message is dispatched to its
     * queue and the index. Message i is {@code specification(i)}: the other side can make it too.
     */
    private static JsonElement put(JsonObject request) throws Exception {
        Path root = Paths.get(request.get("store").getAsString());
        int warmUpCount = Messages.integer(request, "warmUpCount", 200_000);
        int count = request.get("count").getAsInt();
        DefaultMessageStore store = Stores.started(root, request.getAsJsonObject("settings"));
        JsonObject answer = new JsonObject();
        try {
            putAll(store, messages(request, 0, warmUpCount));
            JsonArray seconds = new JsonArray();
            for (int round = 0; round < Messages.integer(request, "rounds", ROUNDS); round++) {
                List<MessageExt> messages =
                    messages(request, warmUpCount + round * count, count);
                System.gc();
                seconds.add(timed(() -> putAll(store, messages)) / 1e9);
            }
            answer.add("seconds", seconds);
            answer.addProperty("messages", count);
            answer.addProperty("maxPhyOffset", store.getMaxPhyOffset());
            withConfiguration(answer, store.getMessageStoreConfig());
        } finally {
            stop(store);
        }
        return answer;
    }

    /** Everything is dispatched, so shutdown() need not sleep for three seconds. */
    private static void stop(DefaultMessageStore store) {
        Thread.currentThread().interrupt();
        Stores.stop(store);
        Thread.interrupted();
    }

    private static void putAll(DefaultMessageStore store, List<MessageExt> messages) {
        for (MessageExt message : messages) {
            PutMessageStatus status = LINE.put(store, message).getPutMessageStatus();
            if (status != PutMessageStatus.PUT_OK) {
                throw new IllegalStateException("putMessage said " + status);
            }
        }
        try {
            Stores.awaitDispatch(store);
        } catch (InterruptedException interrupted) {
            throw new IllegalStateException(interrupted);
        }
    }

    private static List<MessageExt> messages(JsonObject request, int first, int count)
        throws Exception {
        int queueCount = Messages.integer(request, "queueCount", 4);
        int bodySize = Messages.integer(request, "bodySize", 300);
        List<MessageExt> messages = new ArrayList<>(count);
        for (int number = first; number < first + count; number++) {
            JsonObject specification = new JsonObject();
            specification.addProperty("topic", Messages.text(request, "topic", "bench"));
            specification.addProperty("queueId", number % queueCount);
            specification.addProperty("tags", "Tag" + number % 10);
            specification.addProperty("keys", "order-" + number);
            JsonObject properties = new JsonObject();
            properties.addProperty("UNIQ_KEY", String.format("%032X", number));
            specification.add("properties", properties);
            MessageExt message = Messages.storeMessageFromJson(specification);
            message.setBody(body(number, bodySize));
            messages.add(message);
        }
        return messages;
    }

    /** Byte j of the body of message i is (31 i + 7 j) mod 256. */
    private static byte[] body(int number, int size) {
        byte[] body = new byte[size];
        for (int index = 0; index < size; index++) {
            body[index] = (byte) (31 * number + 7 * index);
        }
        return body;
    }

    /** IndexService.queryOffset for each "topic TAB key" line of {@code keysFile}. */
    private static JsonElement query(JsonObject request) throws Exception {
        Path root = Paths.get(request.get("store").getAsString());
        MessageStoreConfig config = Stores.config(root, request.getAsJsonObject("settings"));
        IndexService index =
            new IndexService(LINE.newStore(config, Collections.emptyMap()));
        index.load(true);
        List<String[]> keys = new ArrayList<>();
        for (String line : Files.readAllLines(
            Paths.get(request.get("keysFile").getAsString()), StandardCharsets.UTF_8)) {
            keys.add(line.split("\t"));
        }
        JsonObject answer = new JsonObject();
        answer.addProperty("keys", keys.size());
        answer.addProperty("matches", queryAll(index, keys));
        rounds(request, answer, () -> timed(() -> queryAll(index, keys)));
        return withConfiguration(answer, config);
    }

    private static long queryAll(IndexService index, List<String[]> keys) {
        long matches = 0;
        for (String[] key : keys) {
            matches += index.queryOffset(key[0], key[1], 64, 0, Long.MAX_VALUE)
                .getPhyOffsets().size();
        }
        return matches;
    }

    /** Load, recovery and dispatch of a store that has only a log (and "abort"). Once. */
    private static JsonElement rebuild(JsonObject request) throws Exception {
        Path root = Paths.get(request.get("store").getAsString());
        JsonObject settings = request.getAsJsonObject("settings");
        long start = System.nanoTime();
        DefaultMessageStore store = Stores.started(root, settings);
        JsonArray seconds = new JsonArray();
        seconds.add((System.nanoTime() - start) / 1e9);
        JsonObject answer = new JsonObject();
        try {
            long units = 0;
            for (Line.Queue queue : LINE.queues(store)) {
                units += queue.maxOffset - queue.minOffset;
            }
            answer.add("seconds", seconds);
            answer.addProperty("units", units);
            answer.addProperty("maxPhyOffset", store.getMaxPhyOffset());
            withConfiguration(answer, store.getMessageStoreConfig());
        } finally {
            stop(store);
        }
        return answer;
    }

    private static void rounds(JsonObject request, JsonObject answer, LongSupplier round) {
        long warmUpEnd = System.nanoTime()
            + 1_000_000L * Messages.integer(request, "warmUpMs", 5_000);
        do {
            round.getAsLong();
        } while (System.nanoTime() < warmUpEnd);
        JsonArray seconds = new JsonArray();
        for (int count = Messages.integer(request, "rounds", ROUNDS); count > 0; count--) {
            seconds.add(round.getAsLong() / 1e9);
        }
        answer.add("seconds", seconds);
    }

    private static long timed(Runnable work) {
        long start = System.nanoTime();
        work.run();
        return System.nanoTime() - start;
    }

    private static JsonObject withConfiguration(JsonObject answer, MessageStoreConfig config) {
        JsonObject configuration = new JsonObject();
        configuration.addProperty("java", System.getProperty("java.vm.version"));
        configuration.addProperty("heapMaxBytes", Runtime.getRuntime().maxMemory());
        if (config != null) {
            configuration.addProperty("flushDiskType", config.getFlushDiskType().name());
            configuration.addProperty(
                "mappedFileSizeCommitLog", config.getMappedFileSizeCommitLog());
            configuration.addProperty(
                "mappedFileSizeConsumeQueue", config.getMappedFileSizeConsumeQueue());
            configuration.addProperty("maxHashSlotNum", config.getMaxHashSlotNum());
            configuration.addProperty("maxIndexNum", config.getMaxIndexNum());
            configuration.addProperty(
                "transientStorePoolEnable", config.isTransientStorePoolEnable());
            configuration.addProperty("warmMapedFileEnable", config.isWarmMapedFileEnable());
            configuration.addProperty("checkCRCOnRecover", config.isCheckCRCOnRecover());
        }
        answer.add("configuration", configuration);
        return answer;
    }
}
