package rmqlog.judge;

import java.io.IOException;
import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import org.apache.rocketmq.common.BrokerConfig;
import org.apache.rocketmq.common.message.MessageDecoder;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.store.ConsumeQueue;
import org.apache.rocketmq.store.DefaultMessageStore;
import org.apache.rocketmq.store.DispatchRequest;
import org.apache.rocketmq.store.MessageExtBrokerInner;
import org.apache.rocketmq.store.PutMessageResult;
import org.apache.rocketmq.store.SelectMappedBufferResult;
import org.apache.rocketmq.store.config.BrokerRole;
import org.apache.rocketmq.store.config.MessageStoreConfig;
import org.apache.rocketmq.store.stats.BrokerStatsManager;

/** RocketMQ 4.9. */
final class ThisLine implements Line {
    @Override
    public DefaultMessageStore newStore(
        MessageStoreConfig config, Map<String, Map<String, String>> topicAttributes)
        throws IOException {
        return new DefaultMessageStore(config, new BrokerStatsManager("judge", false),
            (topic, queueId, offset, tags, time, bitMap, properties) -> { }, new BrokerConfig());
    }

    @Override
    public void holdDelayedMessages(DefaultMessageStore store) {
        store.handleScheduleMessageService(BrokerRole.SLAVE);
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
        for (Map<Integer, ConsumeQueue> ofTopic : store.getConsumeQueueTable().values()) {
            for (ConsumeQueue queue : ofTopic.values()) {
                queues.add(new Queue(queue.getTopic(), queue.getQueueId(),
                    queue.getMinOffsetInQueue(), queue.getMaxOffsetInQueue()));
            }
        }
        return queues;
    }

    @Override
    public List<Unit> units(DefaultMessageStore store, Queue queue) {
        List<Unit> units = new ArrayList<>();
        ConsumeQueue consumeQueue =
            store.getConsumeQueueTable().get(queue.topic).get(queue.queueId);
        long next = queue.minOffset;
        while (next < queue.maxOffset) {
            SelectMappedBufferResult rest = consumeQueue.getIndexBuffer(next);
            if (rest == null) {
                break;
            }
            try {
                ByteBuffer buffer = rest.getByteBuffer();
                while (buffer.remaining() >= ConsumeQueue.CQ_STORE_UNIT_SIZE
                    && next < queue.maxOffset) {
                    units.add(new Unit(next++, buffer.getLong(), buffer.getInt(),
                        buffer.getLong()));
                }
            } finally {
                rest.release();
            }
        }
        return units;
    }

    @Override
    public MessageExt decode(ByteBuffer buffer, boolean decompress, boolean checkCrc) {
        return MessageDecoder.decode(buffer, true, decompress, false);
    }

    @Override
    public DispatchRequest check(DefaultMessageStore store, ByteBuffer buffer) {
        return store.getCommitLog().checkMessageAndReturnSize(buffer, true, true);
    }

    @Override
    public boolean choosesCrcCheck() {
        return false;
    }
}
