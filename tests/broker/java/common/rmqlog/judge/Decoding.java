package rmqlog.judge;

import com.google.gson.JsonArray;
import com.google.gson.JsonElement;
import com.google.gson.JsonNull;
import com.google.gson.JsonObject;
import java.nio.ByteBuffer;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Base64;
import java.util.Collections;
import java.util.Map;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.store.DefaultMessageStore;
import org.apache.rocketmq.store.DispatchRequest;
import org.apache.rocketmq.store.config.MessageStoreConfig;

/** Single records: MessageDecoder's fields, and whether the store's recovery would accept them. */
final class Decoding {
    private static final Line LINE = new ThisLine();
    private static DefaultMessageStore judge;

    private Decoding() {
    }

    static void register(Map<String, Driver.Command> commands) {
        commands.put("decode", Decoding::decode);
    }

    /**
     * For each of {@code records} (base64, from the record to the end of its segment) what the
     * decoder gives ({@code message}, null where it refuses) and the store's own check.
     */
    private static JsonElement decode(JsonObject request) throws Exception {
        boolean decompress = Messages.bool(request, "decompress", true);
        boolean checkCrc = Messages.bool(request, "checkCrc", false);
        JsonArray answers = new JsonArray();
        for (JsonElement record : request.getAsJsonArray("records")) {
            byte[] bytes = Base64.getDecoder().decode(record.getAsString());
            JsonObject answer = new JsonObject();
            answer.add("message", message(bytes, decompress, checkCrc));
            answer.add("check", check(bytes));
            answers.add(answer);
        }
        return answers;
    }

    private static JsonElement message(byte[] bytes, boolean decompress, boolean checkCrc) {
        MessageExt message;
        try {
            message = LINE.decode(ByteBuffer.wrap(bytes), decompress, checkCrc);
        } catch (RuntimeException | Error refusal) {
            return JsonNull.INSTANCE; // the decoder lets some damage through as an exception
        }
        return message == null ? JsonNull.INSTANCE : Messages.toJson(message);
    }

    /** What the dispatcher would be told, if the store accepts the record. */
    private static JsonObject check(byte[] bytes) throws Exception {
        JsonObject json = new JsonObject();
        DispatchRequest found;
        try {
            found = LINE.check(store(), ByteBuffer.wrap(bytes));
        } catch (OutOfMemoryError allocation) {
            // 4.9 allocates whatever length it reads; a broker would end here.
            json.addProperty("success", false);
            json.addProperty("size", -1);
            return json;
        }
        json.addProperty("success", found.isSuccess());
        json.addProperty("size", found.getMsgSize());
        if (found.isSuccess() && found.getMsgSize() > 0) {
            json.addProperty("topic", found.getTopic());
            json.addProperty("queueId", found.getQueueId());
            json.addProperty("queueOffset", found.getConsumeQueueOffset());
            json.addProperty("commitLogOffset", found.getCommitLogOffset());
            json.addProperty("tagsCode", found.getTagsCode());
            json.addProperty("storeTimestamp", found.getStoreTimestamp());
            json.addProperty("keys", found.getKeys());
            json.addProperty("uniqKey", found.getUniqKey());
            json.addProperty("sysFlag", found.getSysFlag());
            json.addProperty("preparedTransactionOffset", found.getPreparedTransactionOffset());
        }
        return json;
    }

    /** A store that is never started: it lends its CommitLog's check. */
    private static DefaultMessageStore store() throws Exception {
        if (judge == null) {
            Path root = Files.createTempDirectory("judge");
            MessageStoreConfig config = Stores.config(root, new JsonObject());
            judge = LINE.newStore(config, Collections.emptyMap());
            judge.load(); // 4.9 learns its delay levels here
            Stores.deleteAtExit(root);
        }
        return judge;
    }
}
