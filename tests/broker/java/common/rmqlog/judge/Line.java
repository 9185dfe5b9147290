package rmqlog.judge;

import java.io.IOException;
import java.nio.ByteBuffer;
import java.util.List;
import java.util.Map;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.store.DefaultMessageStore;
import org.apache.rocketmq.store.DispatchRequest;
import org.apache.rocketmq.store.PutMessageResult;
import org.apache.rocketmq.store.config.MessageStoreConfig;

/** What differs between the 4.9 and the 5.x line of RocketMQ; {@code ThisLine} implements it. */
interface Line {
    /** One message queue of a store and where its units point. */
    final class Queue {
        final String topic;
        final int queueId;
        final long minOffset;
        final long maxOffset;

        Queue(String topic, int queueId, long minOffset, long maxOffset) {
            this.topic = topic;
            this.queueId = queueId;
            this.minOffset = minOffset;
            this.maxOffset = maxOffset;
        }
    }

    /** One unit: queue offset, physical offset, size and tags code. */
    final class Unit {
        final long queueOffset;
        final long commitLogOffset;
        final int size;
        final long tagsCode;

        Unit(long queueOffset, long commitLogOffset, int size, long tagsCode) {
            this.queueOffset = queueOffset;
            this.commitLogOffset = commitLogOffset;
            this.size = size;
            this.tagsCode = tagsCode;
        }
    }

    /** A store that is neither loaded nor started; attributes are those of topics.json. */
    DefaultMessageStore newStore(
        MessageStoreConfig config, Map<String, Map<String, String>> topicAttributes)
        throws IOException;

    /** Keeps a store that was just started from delivering delayed messages by itself. */
    void holdDelayedMessages(DefaultMessageStore store);

    /** Appends a message through the store's own putMessage. */
    PutMessageResult put(DefaultMessageStore store, MessageExt message);

    List<Queue> queues(DefaultMessageStore store);

    /** The units in [min, max) of a queue, in order. */
    List<Unit> units(DefaultMessageStore store, Queue queue);

    /** MessageDecoder's message at the buffer's position, or null where it refuses. */
    MessageExt decode(ByteBuffer buffer, boolean decompress, boolean checkCrc);

    /** checkMessageAndReturnSize with the CRC on, as recovery after a crash calls it. */
    DispatchRequest check(DefaultMessageStore store, ByteBuffer buffer);

    /** Whether decode can be told not to check the body's CRC, or to check it. */
    boolean choosesCrcCheck();
}
