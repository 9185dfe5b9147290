package rmqlog.judge;

import java.lang.reflect.Field;
import org.apache.rocketmq.store.DefaultMessageStore;
import org.apache.rocketmq.store.index.IndexService;

/** The index of a running store, which 4.9 keeps private. */
final class StoreIndex {
    private StoreIndex() {
    }

    static IndexService of(DefaultMessageStore store) {
        try {
            Field field = DefaultMessageStore.class.getDeclaredField("indexService");
            field.setAccessible(true);
            return (IndexService) field.get(store);
        } catch (ReflectiveOperationException changed) {
            throw new IllegalStateException("this line keeps its index elsewhere", changed);
        }
    }
}
