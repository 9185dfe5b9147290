package rmqlog.judge;

import java.util.Arrays;
import org.apache.rocketmq.broker.BrokerStartup;
import org.apache.rocketmq.namesrv.NamesrvStartup;

/**
 * RocketMQ's own server mains, tied to standard input: when it ends, because the test says so or
 * because the test's process is gone, the server stops in order through its own shutdown hook.
 */
public final class Server {
    private Server() {
    }

    public static void main(String[] arguments) throws Exception {
        String[] rest = Arrays.copyOfRange(arguments, 1, arguments.length);
        if (arguments[0].equals("broker")) {
            BrokerStartup.main(rest);
        } else {
            NamesrvStartup.main(rest);
        }
        while (System.in.read() >= 0) {
            continue;
        }
        System.exit(0);
    }
}
