package rmqlog.judge;

import com.google.gson.JsonElement;
import com.google.gson.JsonObject;
import com.google.gson.JsonPrimitive;
import java.io.RandomAccessFile;
import java.nio.channels.FileLock;
import java.util.HashMap;
import java.util.Map;

/** The lock a broker takes in start(): byte 0 of the store's file "lock", exclusive. */
final class StoreLock {
    private static final Map<String, RandomAccessFile> HELD = new HashMap<>();

    private StoreLock() {
    }

    static void register(Map<String, Driver.Command> commands) {
        commands.put("lock", StoreLock::lock);
        commands.put("unlock", StoreLock::unlock);
    }

    /** Tries to take the lock of {@code path} and keeps it until "unlock"; true if it did. */
    private static JsonElement lock(JsonObject request) throws Exception {
        String path = request.get("path").getAsString();
        RandomAccessFile file = new RandomAccessFile(path, "rw");
        FileLock lock = file.getChannel().tryLock(0, 1, false);
        if (lock == null) {
            file.close();
        } else {
            HELD.put(path, file);
        }
        return new JsonPrimitive(lock != null);
    }

    private static JsonElement unlock(JsonObject request) throws Exception {
        HELD.remove(request.get("path").getAsString()).close();
        return new JsonPrimitive(true);
    }
}
