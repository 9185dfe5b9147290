package rmqlog.judge;

import java.io.IOException;
import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ConcurrentMap;
import org.apache.rocketmq.common.BrokerConfig;
import org.apache.rocketmq.common.TopicConfig;
import org.apache.rocketmq.common.message.MessageDecoder;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageExtBrokerInner;
import org.apache.rocketmq.store.DefaultMessageStore;
import org.apache.rocketmq.store.DispatchRequest;
import org.apache.rocketmq.store.PutMessageResult;
import org.apache.rocketmq.store.config.MessageStoreConfig;
import org.apache.rocketmq.store.queue.ConsumeQueueInterface;
import org.apache.rocketmq.store.queue.CqUnit;
import org.apache.rocketmq.store.queue.ReferredIterator;
import org.apache.rocketmq.store.stats.BrokerStatsManager;

/** RocketMQ 5.x. */
final class ThisLine implements Line {
    @Override
    public DefaultMessageStore newStore(
        MessageStoreConfig config, Map<String, Map<String, String>> topicAttributes)
        throws IOException {
        ConcurrentMap<String, TopicConfig> topics = new ConcurrentHashMap<>();
        topicAttributes.forEach((topic, attributes) -> {
            TopicConfig topicConfig = new TopicConfig(topic);
            topicConfig.setAttributes(new HashMap<>(attributes));
            topics.put(topic, topicConfig);
        });
        return new DefaultMessageStore(config, new BrokerStatsManager("judge", false),
            (topic, queueId, offset, tags, time, bitMap, properties) -> { },
            new BrokerConfig(), topics);
    }

    @Override
    public void holdDelayedMessages(DefaultMessageStore store) {
        // The broker delivers them in this line, not the store.
    }

    @Override
    public PutMessageResult put(DefaultMessageStore store, MessageExt message) {
        MessageExtBrokerInner inner = new MessageExtBrokerInner();
        Messages.copy(message, inner);
        inner.setPropertiesString(MessageDecoder.messageProperties2String(inner.getProperties()));
        return store.putMessage(inner);
    }

    @Override
    public List<Queue> queues(DefaultMessageStore store) {
        List<Queue> queues = new ArrayList<>();
        for (Map<Integer, ConsumeQueueInterface> ofTopic : store.getConsumeQueueTable().values()) {
            for (ConsumeQueueInterface queue : ofTopic.values()) {
                queues.add(new Queue(queue.getTopic(), queue.getQueueId(),
                    queue.getMinOffsetInQueue(), queue.getMaxOffsetInQueue()));
            }
        }
        return queues;
    }

    @Override
    public List<Unit> units(DefaultMessageStore store, Queue queue) {
        List<Unit> units = new ArrayList<>();
        ConsumeQueueInterface consumeQueue =
            store.getConsumeQueueTable().get(queue.topic).get(queue.queueId);
        long next = queue.minOffset;
        while (next < queue.maxOffset) {
            ReferredIterator<CqUnit> iterator = consumeQueue.iterateFrom(next);
            if (iterator == null) {
                break;
            }
            long before = next;
            try {
                // An iterator ends with its file: the next one starts in the next file.
                while (iterator.hasNext() && next < queue.maxOffset) {
                    CqUnit unit = iterator.next();
                    units.add(new Unit(unit.getQueueOffset(), unit.getPos(), unit.getSize(),
                        unit.getTagsCode()));
                    next = unit.getQueueOffset() + unit.getBatchNum();
                }
            } finally {
                iterator.release();
            }
            if (next == before) {
                break;
            }
        }
        return units;
    }

    @Override
    public MessageExt decode(ByteBuffer buffer, boolean decompress, boolean checkCrc) {
        return MessageDecoder.decode(buffer, true, decompress, false, false, checkCrc);
    }

    @Override
    public DispatchRequest check(DefaultMessageStore store, ByteBuffer buffer) {
        return store.getCommitLog().checkMessageAndReturnSize(buffer, true, false, true);
    }

    @Override
    public boolean choosesCrcCheck() {
        return true;
    }
}
