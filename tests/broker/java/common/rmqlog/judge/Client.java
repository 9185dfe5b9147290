package rmqlog.judge;

import com.google.gson.JsonArray;
import com.google.gson.JsonElement;
import com.google.gson.JsonObject;
import com.google.gson.JsonPrimitive;
import java.util.ArrayList;
import java.util.Collections;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.TreeSet;
import java.util.UUID;
import java.util.concurrent.Callable;
import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.client.consumer.PullResult;
import org.apache.rocketmq.client.exception.MQBrokerException;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.TopicConfig;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;
import org.apache.rocketmq.remoting.exception.RemotingException;
import org.apache.rocketmq.tools.admin.DefaultMQAdminExt;

/** A real client of a real broker: each request names the name server and the broker. */
final class Client {
    private static final int PULL_BATCH = 32;
    private static final long ROUTE_LIMIT_MS = 90_000;
    private static final long PATIENCE_MS = 30_000;
    /** Clients by name server, role and settings: starting one costs a second. */
    private static final Map<String, Session> SESSIONS = new HashMap<>();

    private Client() {
    }

    /** Everything that talks to one broker. */
    private static final class Session {
        final Map<String, DefaultMQProducer> producers = new HashMap<>();
        final Map<String, DefaultMQPullConsumer> consumers = new HashMap<>();
        DefaultMQAdminExt admin;
    }

    static void register(Map<String, Driver.Command> commands) {
        commands.put("await-broker", patient(Client::awaitBroker));
        commands.put("create-topic", patient(Client::createTopic));
        commands.put("delete-topic", patient(Client::deleteTopic));
        commands.put("topics", patient(Client::topics));
        commands.put("send", Client::send);
        commands.put("pull", patient(Client::pull));
        commands.put("max-offset", patient(Client::maxOffset));
        commands.put("query-key", patient(Client::queryKey));
        commands.put("view", patient(Client::view));
        commands.put("send-back", Client::sendBack);
        commands.put("commit-offset", patient(Client::commitOffset));
        commands.put("disconnect", Client::disconnect);
        Transactions.register(commands);
    }

    /**
     * A command that asks again when a connection, a route or an answer took too long: clients wait
     * three to six seconds for those, and a busy machine may need more. Only for what can be
     * repeated: a message that is sent again is there twice.
     */
    private static Driver.Command patient(Driver.Command command) {
        return request -> {
            long deadline = System.currentTimeMillis() + PATIENCE_MS;
            while (true) {
                try {
                    return command.run(request);
                } catch (MQBrokerException | MQClientException | RemotingException failure) {
                    if (System.currentTimeMillis() > deadline) {
                        throw failure;
                    }
                    failure.printStackTrace();
                    Thread.sleep(500);
                }
            }
        };
    }

    private static Session session(JsonObject request) {
        return SESSIONS.computeIfAbsent(
            request.get("nameServer").getAsString(), nameServer -> new Session());
    }

    private static DefaultMQAdminExt admin(JsonObject request) throws MQClientException {
        Session session = session(request);
        if (session.admin == null) {
            DefaultMQAdminExt admin = new DefaultMQAdminExt(20_000);
            admin.setNamesrvAddr(request.get("nameServer").getAsString());
            admin.setInstanceName(UUID.randomUUID().toString());
            admin.start();
            session.admin = admin;
        }
        return session.admin;
    }

    private static DefaultMQProducer producer(JsonObject request) throws MQClientException {
        String compression = Messages.text(request, "compression", "ZLIB");
        int compressOver = Messages.integer(request, "compressOver", 4096);
        Map<String, DefaultMQProducer> producers = session(request).producers;
        String settings = compression + compressOver;
        DefaultMQProducer producer = producers.get(settings);
        if (producer == null) {
            // Both lines read the type from this property when a producer is made.
            System.setProperty("rocketmq.message.compressType", compression);
            producer = new DefaultMQProducer("judge-producer-" + settings);
            producer.setNamesrvAddr(request.get("nameServer").getAsString());
            producer.setInstanceName(UUID.randomUUID().toString());
            producer.setCompressMsgBodyOverHowmuch(compressOver);
            producer.setMaxMessageSize(1 << 24);
            producer.setSendMsgTimeout(20_000);
            producer.start();
            producers.put(settings, producer);
        }
        return producer;
    }

    private static DefaultMQPullConsumer consumer(JsonObject request) throws MQClientException {
        String group = Messages.text(request, "group", "judge-consumer");
        Map<String, DefaultMQPullConsumer> consumers = session(request).consumers;
        DefaultMQPullConsumer consumer = consumers.get(group);
        if (consumer == null) {
            consumer = new DefaultMQPullConsumer(group);
            consumer.setNamesrvAddr(request.get("nameServer").getAsString());
            consumer.setInstanceName(UUID.randomUUID().toString());
            consumer.setConsumerPullTimeoutMillis(20_000);
            consumer.start();
            consumers.put(group, consumer);
        }
        return consumer;
    }

    private static MessageQueue queue(JsonObject request, JsonObject position) {
        return new MessageQueue(position.get("topic").getAsString(),
            request.get("brokerName").getAsString(), position.get("queueId").getAsInt());
    }

    /** Waits until the name server knows the broker: a first registration can be lost. */
    private static JsonElement awaitBroker(JsonObject request) throws Exception {
        String name = request.get("brokerName").getAsString();
        await("broker " + name, () -> admin(request).examineBrokerClusterInfo()
            .getBrokerAddrTable().containsKey(name));
        return new JsonPrimitive(true);
    }

    private static void await(String what, Callable<Boolean> condition) throws Exception {
        long deadline = System.currentTimeMillis() + ROUTE_LIMIT_MS;
        while (!condition.call()) {
            if (System.currentTimeMillis() > deadline) {
                throw new IllegalStateException("the name server never heard of " + what);
            }
            Thread.sleep(100);
        }
    }

    /** Creates {@code topic} with {@code queueCount} queues and waits until it can be found. */
    private static JsonElement createTopic(JsonObject request) throws Exception {
        String topic = request.get("topic").getAsString();
        int queueCount = request.get("queueCount").getAsInt();
        admin(request).createAndUpdateTopicConfig(request.get("brokerAddress").getAsString(),
            new TopicConfig(topic, queueCount, queueCount, 6));
        await("topic " + topic, () -> hasRoute(request, topic, queueCount));
        return new JsonPrimitive(true);
    }

    private static boolean hasRoute(JsonObject request, String topic, int queueCount) {
        try {
            return producer(request).fetchPublishMessageQueues(topic).size() == queueCount;
        } catch (MQClientException unknownYet) {
            return false;
        }
    }

    private static JsonElement deleteTopic(JsonObject request) throws Exception {
        admin(request).deleteTopicInBroker(
            Collections.singleton(request.get("brokerAddress").getAsString()),
            request.get("topic").getAsString());
        return new JsonPrimitive(true);
    }

    private static JsonElement topics(JsonObject request) throws Exception {
        JsonArray topics = new JsonArray();
        new TreeSet<>(admin(request).fetchAllTopicList().getTopicList()).forEach(topics::add);
        return topics;
    }

    /**
     * Sends {@code messages} one by one, or with {@code batch} as one client batch. What can be
     * repeated comes first: the producer finds the route and connects by asking for an offset.
     */
    private static JsonElement send(JsonObject request) throws Exception {
        DefaultMQProducer producer = producer(request);
        JsonObject first = request.getAsJsonArray("messages").get(0).getAsJsonObject();
        patient(asked -> new JsonPrimitive(producer.maxOffset(queue(asked, first)))).run(request);
        List<Message> messages = new ArrayList<>();
        List<MessageQueue> queues = new ArrayList<>();
        for (JsonElement element : request.getAsJsonArray("messages")) {
            JsonObject specification = element.getAsJsonObject();
            messages.add(Messages.fromJson(specification));
            queues.add(queue(request, specification));
        }
        JsonArray answers = new JsonArray();
        if (Messages.bool(request, "batch", false)) {
            answers.add(sent(producer.send(messages, queues.get(0))));
        } else {
            for (int index = 0; index < messages.size(); index++) {
                answers.add(sent(producer.send(messages.get(index), queues.get(index))));
            }
        }
        return answers;
    }

    static JsonObject sent(SendResult result) {
        JsonObject answer = new JsonObject();
        answer.addProperty("status", result.getSendStatus().name());
        answer.addProperty("uniqKey", result.getMsgId());
        answer.addProperty("msgId", result.getOffsetMsgId());
        answer.addProperty("queueOffset", result.getQueueOffset());
        return answer;
    }

    /** Every message of each of {@code queues} ({topic, queueId}), from min to max. */
    private static JsonElement pull(JsonObject request) throws Exception {
        JsonArray answers = new JsonArray();
        for (JsonElement position : request.getAsJsonArray("queues")) {
            answers.add(pullQueue(request, queue(request, position.getAsJsonObject())));
        }
        return answers;
    }

    /** The queue offset that the next message of a queue will get; 0 for a queue not yet there. */
    private static JsonElement maxOffset(JsonObject request) throws Exception {
        try {
            return new JsonPrimitive(consumer(request).maxOffset(queue(request, request)));
        } catch (MQClientException noRouteYet) {
            return new JsonPrimitive(0);
        }
    }

    private static JsonObject pullQueue(JsonObject request, MessageQueue queue) throws Exception {
        DefaultMQPullConsumer consumer = consumer(request);
        long minOffset = consumer.minOffset(queue);
        long maxOffset = consumer.maxOffset(queue);
        JsonArray messages = new JsonArray();
        long next = minOffset;
        while (next < maxOffset) {
            PullResult result = consumer.pull(queue, "*", next, PULL_BATCH);
            if (result.getMsgFoundList() != null) {
                result.getMsgFoundList().forEach(found -> messages.add(Messages.toJson(found)));
            }
            if (result.getNextBeginOffset() <= next) {
                break; // the broker does not go on: the caller sees fewer messages than max says
            }
            next = result.getNextBeginOffset();
        }
        JsonObject answer = new JsonObject();
        answer.addProperty("topic", queue.getTopic());
        answer.addProperty("queueId", queue.getQueueId());
        answer.addProperty("minOffset", minOffset);
        answer.addProperty("maxOffset", maxOffset);
        answer.add("messages", messages);
        return answer;
    }

    /** What a client finds by key; the broker caps it at its own maxMsgsNumBatch. */
    private static JsonElement queryKey(JsonObject request) throws Exception {
        JsonArray messages = new JsonArray();
        try {
            admin(request).queryMessage(request.get("topic").getAsString(),
                request.get("key").getAsString(), Messages.integer(request, "maxCount", 64), 0,
                Long.MAX_VALUE).getMessageList()
                .forEach(found -> messages.add(Messages.toJson(found)));
        } catch (MQClientException none) {
            System.err.println("nothing found: " + none.getErrorMessage());
        }
        return messages;
    }

    /** One message by its offset message id. */
    private static JsonElement view(JsonObject request) throws Exception {
        return Messages.toJson(consumer(request).viewMessage(
            request.get("topic").getAsString(), request.get("msgId").getAsString()));
    }

    /** Hands a consumed message back: to the group's retry topic, or below level 0 to its DLQ. */
    private static JsonElement sendBack(JsonObject request) throws Exception {
        DefaultMQPullConsumer consumer = consumer(request);
        MessageQueue queue = queue(request, request);
        MessageExt message = consumer.pull(
            queue, "*", request.get("queueOffset").getAsLong(), 1).getMsgFoundList().get(0);
        consumer.sendMessageBack(message, request.get("delayLevel").getAsInt(),
            queue.getBrokerName(), consumer.getConsumerGroup());
        return Messages.toJson(message);
    }

    private static JsonElement commitOffset(JsonObject request) throws Exception {
        admin(request).updateConsumeOffset(request.get("brokerAddress").getAsString(),
            request.get("group").getAsString(), queue(request, request),
            request.get("queueOffset").getAsLong());
        return new JsonPrimitive(true);
    }

    /** Stops every client of a name server. */
    private static JsonElement disconnect(JsonObject request) {
        Transactions.disconnect(request.get("nameServer").getAsString());
        Session session = SESSIONS.remove(request.get("nameServer").getAsString());
        if (session != null) {
            session.producers.values().forEach(DefaultMQProducer::shutdown);
            session.consumers.values().forEach(DefaultMQPullConsumer::shutdown);
            if (session.admin != null) {
                session.admin.shutdown();
            }
        }
        return new JsonPrimitive(true);
    }
}
