import java.nio.charset.StandardCharsets;
import java.util.Scanner;
import java.util.concurrent.CountDownLatch;
import org.apache.rocketmq.client.producer.LocalTransactionState;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.client.producer.TransactionListener;
import org.apache.rocketmq.client.producer.TransactionMQProducer;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/**
 * Sends four transactional messages with RocketMQ's own Java client. The first line on standard input is the address of
 * a broker: when the client takes that for the master, it commits one, rolls one back, and does the same with two when
 * a broker asks. Arguments: name servers, topic, group. Prints `prepared BODY`, and `asked BODY` from then on. With the
 * second line it sends a fifth, which is committed at once, and prints `sent` when that is acknowledged; with the third
 * it ends.
 */
public final class ActingTransactions {
    private static final int AT_FIRST = 4;
    private static final CountDownLatch decided = new CountDownLatch(1);
    private static TransactionMQProducer producer;
    private static String topic;

    public static void main(String[] arguments) throws Exception {
        topic = arguments[1];
        producer = new TransactionMQProducer(arguments[2]);
        producer.setNamesrvAddr(arguments[0]);
        producer.setPollNameServerInterval(500);
        producer.setHeartbeatBrokerInterval(1_000);
        producer.setSendMsgTimeout(10_000);
        producer.setTransactionListener(new TransactionListener() {
            @Override
            public LocalTransactionState executeLocalTransaction(Message message, Object argument) {
                say("prepared", message);
                await();
                return switch (number(message)) {
                    case 1 -> LocalTransactionState.ROLLBACK_MESSAGE;
                    case 2, 3 -> LocalTransactionState.UNKNOW;
                    default -> LocalTransactionState.COMMIT_MESSAGE;
                };
            }

            @Override
            public LocalTransactionState checkLocalTransaction(MessageExt message) {
                if (decided.getCount() > 0 || number(message) < 2) {
                    return LocalTransactionState.UNKNOW;
                }
                say("asked", message);
                return number(message) == 2
                    ? LocalTransactionState.COMMIT_MESSAGE
                    : LocalTransactionState.ROLLBACK_MESSAGE;
            }
        });
        producer.start();
        for (int number = 0; number < AT_FIRST; number++) {
            Message message = message(number);
            new Thread(() -> send(message)).start();
        }
        Scanner lines = new Scanner(System.in);
        String address = lines.nextLine();
        while (!address.equals(
            producer.getDefaultMQProducerImpl().getMqClientFactory().findBrokerAddressInPublish("broker-a"))) {
            Thread.sleep(50);
        }
        decided.countDown();
        lines.nextLine();
        while (!send(message(AT_FIRST))) {
            Thread.sleep(100);
        }
        System.out.println("sent");
        lines.nextLine();
        System.exit(0);
    }

    private static Message message(int number) {
        return new Message(topic, Integer.toString(number).getBytes(StandardCharsets.UTF_8));
    }

    private static int number(Message message) {
        return Integer.parseInt(new String(message.getBody(), StandardCharsets.UTF_8));
    }

    private static boolean send(Message message) {
        try {
            return producer.sendMessageInTransaction(message, null).getSendStatus() == SendStatus.SEND_OK;
        } catch (Exception error) {
            System.out.println("failed " + number(message) + " " + error.toString().replace('\n', ' '));
            return false;
        }
    }

    private static void await() {
        try {
            decided.await();
        } catch (InterruptedException error) {
            throw new IllegalStateException(error);
        }
    }

    private static synchronized void say(String what, Message message) {
        System.out.println(what + " " + number(message));
        System.out.flush();
    }
}
