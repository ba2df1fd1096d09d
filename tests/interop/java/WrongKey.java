import java.nio.charset.StandardCharsets;
import org.apache.rocketmq.acl.common.AclClientRPCHook;
import org.apache.rocketmq.acl.common.SessionCredentials;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.message.Message;

/**
 * Sends one message under an access key. Arguments: name servers, topic, key, secret. Prints `sent STATUS`, or
 * `failed` with the exception and its causes, each on its line.
 */
public final class WrongKey {
    public static void main(String[] arguments) throws Exception {
        AclClientRPCHook hook = new AclClientRPCHook(new SessionCredentials(arguments[2], arguments[3]));
        DefaultMQProducer producer = new DefaultMQProducer("wrong_key_producer", hook);
        producer.setNamesrvAddr(arguments[0]);
        producer.setSendMsgTimeout(20_000);
        producer.start();
        try {
            Message message = new Message(arguments[1], "x".getBytes(StandardCharsets.UTF_8));
            System.out.println("sent " + producer.send(message).getSendStatus());
        } catch (Exception error) {
            for (Throwable each = error; each != null; each = each.getCause()) {
                System.out.println("failed " + each.toString().replace('\n', ' '));
            }
        }
        producer.shutdown();
        System.exit(0);
    }
}
