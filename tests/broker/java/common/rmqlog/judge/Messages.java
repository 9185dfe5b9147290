package rmqlog.judge;

import com.google.gson.JsonElement;
import com.google.gson.JsonNull;
import com.google.gson.JsonObject;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.net.SocketAddress;
import java.util.Base64;
import java.util.Map;
import java.util.TreeMap;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageAccessor;
import org.apache.rocketmq.common.message.MessageClientExt;
import org.apache.rocketmq.common.message.MessageConst;
import org.apache.rocketmq.common.message.MessageExt;

/** Messages to JSON and back. */
final class Messages {
    private Messages() {
    }

    /** Every field as RocketMQ gives it; the names are the columns of rmqlog. */
    static JsonObject toJson(MessageExt message) {
        JsonObject json = new JsonObject();
        json.addProperty("topic", message.getTopic());
        json.addProperty("queueId", message.getQueueId());
        json.addProperty("queueOffset", message.getQueueOffset());
        json.addProperty("msgId", message instanceof MessageClientExt
            ? ((MessageClientExt) message).getOffsetMsgId() : message.getMsgId());
        json.addProperty("uniqKey",
            message.getProperty(MessageConst.PROPERTY_UNIQ_CLIENT_MESSAGE_ID_KEYIDX));
        json.addProperty("tags", message.getTags());
        json.addProperty("keys", message.getKeys());
        json.addProperty("bodyBase64", message.getBody() == null
            ? "" : Base64.getEncoder().encodeToString(message.getBody()));
        json.add("properties", properties(message.getProperties()));
        json.addProperty("flag", message.getFlag());
        json.addProperty("sysFlag", message.getSysFlag());
        json.addProperty("bornTimestamp", message.getBornTimestamp());
        json.addProperty("bornHost", host(message.getBornHost()));
        json.addProperty("storeTimestamp", message.getStoreTimestamp());
        json.addProperty("storeHost", host(message.getStoreHost()));
        json.addProperty("reconsumeTimes", message.getReconsumeTimes());
        json.addProperty("preparedTransactionOffset", message.getPreparedTransactionOffset());
        json.addProperty("commitLogOffset", message.getCommitLogOffset());
        json.addProperty("storeSize", message.getStoreSize());
        json.addProperty("bodyCrc", message.getBodyCRC());
        return json;
    }

    private static JsonElement properties(Map<String, String> properties) {
        if (properties == null) {
            return JsonNull.INSTANCE;
        }
        JsonObject json = new JsonObject();
        for (Map.Entry<String, String> entry : new TreeMap<>(properties).entrySet()) {
            json.addProperty(entry.getKey(), entry.getValue());
        }
        return json;
    }

    private static String host(SocketAddress address) {
        InetSocketAddress host = (InetSocketAddress) address;
        return host == null ? null : host.getAddress().getHostAddress() + ":" + host.getPort();
    }

    /** A client's message from its specification. */
    static Message fromJson(JsonObject specification) {
        Message message = new Message();
        fill(message, specification);
        return message;
    }

    /** A message for the store itself, which also takes hosts and times. */
    static MessageExt storeMessageFromJson(JsonObject specification) throws Exception {
        MessageExt message = new MessageExt();
        fill(message, specification);
        message.setQueueId(integer(specification, "queueId", 0));
        message.setSysFlag(integer(specification, "sysFlag", 0));
        message.setReconsumeTimes(integer(specification, "reconsumeTimes", 0));
        message.setBornTimestamp(specification.has("bornTimestamp")
            ? specification.get("bornTimestamp").getAsLong() : System.currentTimeMillis());
        message.setBornHost(address(text(specification, "bornHost", "127.0.0.1:1234")));
        message.setStoreHost(address(text(specification, "storeHost", "127.0.0.1:10911")));
        if (((InetSocketAddress) message.getBornHost()).getAddress().getAddress().length == 16) {
            message.setBornHostV6Flag();
        }
        if (((InetSocketAddress) message.getStoreHost()).getAddress().getAddress().length == 16) {
            message.setStoreHostAddressV6Flag();
        }
        return message;
    }

    /** Copies what a store's putMessage looks at. */
    static void copy(MessageExt source, MessageExt target) {
        target.setTopic(source.getTopic());
        target.setBody(source.getBody());
        target.setFlag(source.getFlag());
        MessageAccessor.setProperties(target, source.getProperties());
        target.setQueueId(source.getQueueId());
        target.setSysFlag(source.getSysFlag());
        target.setReconsumeTimes(source.getReconsumeTimes());
        target.setBornTimestamp(source.getBornTimestamp());
        target.setBornHost(source.getBornHost());
        target.setStoreHost(source.getStoreHost());
    }

    private static void fill(Message message, JsonObject specification) {
        message.setTopic(specification.get("topic").getAsString());
        message.setBody(Base64.getDecoder().decode(text(specification, "bodyBase64", "")));
        message.setFlag(integer(specification, "flag", 0));
        if (specification.has("tags")) {
            message.setTags(specification.get("tags").getAsString());
        }
        if (specification.has("keys")) {
            message.setKeys(specification.get("keys").getAsString());
        }
        if (specification.has("delayLevel")) {
            message.setDelayTimeLevel(specification.get("delayLevel").getAsInt());
        }
        if (specification.has("properties")) {
            for (Map.Entry<String, JsonElement> entry
                : specification.getAsJsonObject("properties").entrySet()) {
                // putUserProperty would refuse the reserved names that some shapes need.
                MessageAccessor.putProperty(
                    message, entry.getKey(), entry.getValue().getAsString());
            }
        }
    }

    private static InetSocketAddress address(String text) throws Exception {
        int colon = text.lastIndexOf(':');
        return new InetSocketAddress(InetAddress.getByName(text.substring(0, colon)),
            Integer.parseInt(text.substring(colon + 1)));
    }

    static String text(JsonObject json, String name, String otherwise) {
        return json.has(name) && !json.get(name).isJsonNull()
            ? json.get(name).getAsString() : otherwise;
    }

    static int integer(JsonObject json, String name, int otherwise) {
        return json.has(name) ? json.get(name).getAsInt() : otherwise;
    }

    static boolean bool(JsonObject json, String name, boolean otherwise) {
        return json.has(name) ? json.get(name).getAsBoolean() : otherwise;
    }
}
