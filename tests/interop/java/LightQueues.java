import java.nio.charset.StandardCharsets;
import java.util.List;
import org.apache.rocketmq.acl.common.AclClientRPCHook;
import org.apache.rocketmq.acl.common.SessionCredentials;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.LocalTransactionState;
import org.apache.rocketmq.client.producer.TransactionListener;
import org.apache.rocketmq.client.producer.TransactionMQProducer;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/**
 * Sends messages that name light queues, under an access key. Arguments: name servers, topic, key, secret, value of
 * INNER_MULTI_DISPATCH. Prints for each of `single`, `batch` and `transaction` its name and `sent`, or its name, `failed` and the error.
 */
public final class LightQueues {
    private LightQueues() {
    }

    public static void main(String[] arguments) throws Exception {
        AclClientRPCHook hook = new AclClientRPCHook(new SessionCredentials(arguments[2], arguments[3]));
        DefaultMQProducer producer = new DefaultMQProducer("light_queues", hook);
        producer.setNamesrvAddr(arguments[0]);
        producer.setSendMsgTimeout(20_000);
        producer.setRetryTimesWhenSendFailed(0);
        producer.start();
        TransactionMQProducer transactions = new TransactionMQProducer("light_queue_transactions", hook);
        transactions.setNamesrvAddr(arguments[0]);
        transactions.setSendMsgTimeout(20_000);
        transactions.setRetryTimesWhenSendFailed(0);
        transactions.setTransactionListener(new TransactionListener() {
            @Override
            public LocalTransactionState executeLocalTransaction(Message message, Object argument) {
                return LocalTransactionState.COMMIT_MESSAGE;
            }

            @Override
            public LocalTransactionState checkLocalTransaction(MessageExt message) {
                return LocalTransactionState.COMMIT_MESSAGE;
            }
        });
        transactions.start();
        say("single", () -> producer.send(message(arguments, "single")));
        say("batch", () -> producer.send(List.of(message(arguments, "batch"), message(arguments, "batch"))));
        say("transaction", () -> transactions.sendMessageInTransaction(message(arguments, "transaction"), null));
        producer.shutdown();
        transactions.shutdown();
        System.exit(0);
    }

    private interface Sending {
        Object send() throws Exception;
    }

    private static Message message(String[] arguments, String body) {
        Message made = new Message(arguments[1], body.getBytes(StandardCharsets.UTF_8));
        made.putUserProperty("INNER_MULTI_DISPATCH", arguments[4]);
        return made;
    }

    private static void say(String name, Sending sending) {
        try {
            sending.send();
            System.out.println(name + " sent");
        } catch (Throwable error) {
            StringBuilder said = new StringBuilder();
            for (Throwable each = error; each != null; each = each.getCause()) {
                said.append(' ').append(each.toString().replace('\n', ' '));
            }
            System.out.println(name + " failed" + said);
        }
        System.out.flush();
    }
}
