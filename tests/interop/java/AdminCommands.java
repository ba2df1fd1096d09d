import java.io.BufferedReader;
import java.io.InputStreamReader;
import org.apache.rocketmq.tools.command.MQAdminStartup;

/**
 * Runs commands of RocketMQ's `mqadmin`, one per line of standard input, in one process; an empty line lists them. What a
 * command prints is followed by a line `<== ended`, or `<== hangs` when it did not end in time: 30 s, or the
 * milliseconds of the argument.
 */
public final class AdminCommands {
    private static final long DEADLINE_MS = 30_000;

    public static void main(String[] arguments) throws Exception {
        System.setErr(System.out);
        long deadlineMs = arguments.length > 0 ? Long.parseLong(arguments[0]) : DEADLINE_MS;
        BufferedReader input = new BufferedReader(new InputStreamReader(System.in));
        for (String line = input.readLine(); line != null; line = input.readLine()) {
            String[] words = line.isBlank() ? new String[0] : line.trim().split("\\s+");
            Thread command = new Thread(() -> MQAdminStartup.main0(words, null));
            command.setDaemon(true);
            command.start();
            command.join(deadlineMs);
            System.out.println(command.isAlive() ? "\n<== hangs" : "\n<== ended");
            System.out.flush();
        }
        System.exit(0);
    }
}
