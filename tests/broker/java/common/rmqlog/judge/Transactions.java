package rmqlog.judge;

import com.google.gson.JsonArray;
import com.google.gson.JsonElement;
import com.google.gson.JsonObject;
import java.util.Collections;
import java.util.HashMap;
import java.util.LinkedHashSet;
import java.util.Map;
import java.util.Set;
import java.util.UUID;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.client.producer.LocalTransactionState;
import org.apache.rocketmq.client.producer.TransactionListener;
import org.apache.rocketmq.client.producer.TransactionMQProducer;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageConst;
import org.apache.rocketmq.common.message.MessageExt;

/** Transactions that end as the request says, and the broker's questions about open ones. */
final class Transactions {
    /** The producers of each name server, which also answer the broker's checks. */
    private static final Map<String, TransactionMQProducer> PRODUCERS = new HashMap<>();

    private Transactions() {
    }

    static void register(Map<String, Driver.Command> commands) {
        commands.put("send-transactions", Transactions::send);
        commands.put("checked-transactions", Transactions::checked);
    }

    /** The outcome travels as the argument of the send; a check never decides anything. */
    private static final class Outcomes implements TransactionListener {
        /** The uniq keys that the broker has asked about. */
        final Set<String> checked = Collections.synchronizedSet(new LinkedHashSet<>());

        @Override
        public LocalTransactionState executeLocalTransaction(Message message, Object outcome) {
            return (LocalTransactionState) outcome;
        }

        @Override
        public LocalTransactionState checkLocalTransaction(MessageExt message) {
            checked.add(message.getProperty(MessageConst.PROPERTY_UNIQ_CLIENT_MESSAGE_ID_KEYIDX));
            return LocalTransactionState.UNKNOW;
        }
    }

    private static TransactionMQProducer producer(JsonObject request) throws MQClientException {
        String nameServer = request.get("nameServer").getAsString();
        TransactionMQProducer producer = PRODUCERS.get(nameServer);
        if (producer == null) {
            producer = new TransactionMQProducer(
                Messages.text(request, "group", "judge-transactions"));
            producer.setNamesrvAddr(nameServer);
            producer.setInstanceName(UUID.randomUUID().toString());
            producer.setSendMsgTimeout(20_000);
            producer.setHeartbeatBrokerInterval(1_000);
            producer.setTransactionListener(new Outcomes());
            producer.start();
            PRODUCERS.put(nameServer, producer);
        }
        return producer;
    }

    /** Each of {@code messages} names its {@code outcome}: COMMIT, ROLLBACK or OPEN. */
    private static JsonElement send(JsonObject request) throws Exception {
        JsonArray answers = new JsonArray();
        for (JsonElement element : request.getAsJsonArray("messages")) {
            JsonObject specification = element.getAsJsonObject();
            answers.add(Client.sent(producer(request).sendMessageInTransaction(
                Messages.fromJson(specification),
                outcome(specification.get("outcome").getAsString()))));
        }
        return answers;
    }

    private static LocalTransactionState outcome(String name) {
        switch (name) {
            case "COMMIT":
                return LocalTransactionState.COMMIT_MESSAGE;
            case "ROLLBACK":
                return LocalTransactionState.ROLLBACK_MESSAGE;
            case "OPEN":
                return LocalTransactionState.UNKNOW;
            default:
                throw new IllegalArgumentException("no such outcome: " + name);
        }
    }

    /** The uniq keys of the transactions that this broker has asked about so far. */
    private static JsonElement checked(JsonObject request) throws MQClientException {
        // A producer registers with the brokers of the topics that it knows.
        TransactionMQProducer producer = producer(request);
        producer.getDefaultMQProducerImpl().getmQClientFactory()
            .updateTopicRouteInfoFromNameServer(request.get("topic").getAsString());
        Set<String> checked = ((Outcomes) producer.getTransactionListener()).checked;
        JsonArray uniqKeys = new JsonArray();
        synchronized (checked) {
            checked.forEach(uniqKeys::add);
        }
        return uniqKeys;
    }

    static void disconnect(String nameServer) {
        TransactionMQProducer producer = PRODUCERS.remove(nameServer);
        if (producer != null) {
            producer.shutdown();
        }
    }
}
