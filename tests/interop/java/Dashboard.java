import java.math.BigDecimal;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.Set;
import java.util.concurrent.Callable;
import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.client.consumer.PullResult;
import org.apache.rocketmq.client.consumer.PullStatus;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.trace.TraceContext;
import org.apache.rocketmq.client.trace.TraceDataEncoder;
import org.apache.rocketmq.common.MixAll;
import org.apache.rocketmq.common.TopicConfig;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;
import org.apache.rocketmq.common.topic.TopicValidator;
import org.apache.rocketmq.remoting.RPCHook;
import org.apache.rocketmq.remoting.protocol.admin.ConsumeStats;
import org.apache.rocketmq.remoting.protocol.body.BrokerStatsData;
import org.apache.rocketmq.remoting.protocol.body.CMResult;
import org.apache.rocketmq.remoting.protocol.body.ClusterInfo;
import org.apache.rocketmq.remoting.protocol.body.Connection;
import org.apache.rocketmq.remoting.protocol.body.ConsumerConnection;
import org.apache.rocketmq.remoting.protocol.body.ConsumerRunningInfo;
import org.apache.rocketmq.remoting.protocol.route.BrokerData;
import org.apache.rocketmq.remoting.protocol.subscription.SubscriptionGroupConfig;
import org.apache.rocketmq.store.stats.BrokerStatsManager;
import org.apache.rocketmq.tools.admin.DefaultMQAdminExt;
import org.apache.rocketmq.tools.command.CommandUtil;
import org.apache.rocketmq.tools.command.stats.StatsAllSubCommand;

/**
 * What RocketMQ Dashboard asks for, page by page, and how it reads the answers. Arguments: the name servers, a topic, the
 * unique id of a message there that the connected group `readers` has consumed with trace, and how many replicas each
 * broker has. Prints `PAGE ok`, or `PAGE failed` with the reason.
 */
public final class Dashboard {
    private static final String[] COUNTS = {
        "msgPutTotalYesterdayMorning", "msgPutTotalTodayMorning", "msgPutTotalTodayNow", "msgGetTotalYesterdayMorning",
        "msgGetTotalTodayMorning", "msgGetTotalTodayNow", "bootTimestamp", "commitLogMaxOffset", "commitLogMinOffset",
    };
    private final String nameServers;
    private final String topic;
    private final String unique;
    private final DefaultMQAdminExt admin;
    private final int expected;
    private ClusterInfo cluster;

    private Dashboard(String[] arguments) {
        nameServers = arguments[0];
        topic = arguments[1];
        unique = arguments[2];
        expected = Integer.parseInt(arguments[3]);
        admin = new DefaultMQAdminExt((RPCHook) null, 5_000L);
        admin.setNamesrvAddr(nameServers);
        admin.setInstanceName("dashboard");
    }

    public static void main(String[] arguments) throws Exception {
        Dashboard dashboard = new Dashboard(arguments);
        dashboard.admin.start();
        dashboard.page("cluster", dashboard::cluster);
        dashboard.page("config", dashboard::config);
        dashboard.page("charts", dashboard::charts);
        dashboard.page("replicas", dashboard::replicas);
        dashboard.page("topics", dashboard::topics);
        dashboard.page("topic", dashboard::topic);
        dashboard.page("send", dashboard::send);
        dashboard.page("groups", dashboard::groups);
        dashboard.page("group", dashboard::group);
        dashboard.page("producers", dashboard::producers);
        dashboard.page("messages", dashboard::messages);
        dashboard.page("message", dashboard::message);
        dashboard.page("trace", dashboard::trace);
        dashboard.page("resend", dashboard::resend);
        dashboard.page("dead_letters", dashboard::deadLetters);
        dashboard.page("reset", dashboard::reset);
        dashboard.page("operations", dashboard::operations);
        dashboard.page("delete", dashboard::delete);
        System.exit(0);
    }

    private void page(String name, Callable<Void> page) {
        try {
            page.call();
            System.out.println(name + " ok");
        } catch (Throwable failure) {
            failure.printStackTrace(System.out);
            System.out.println(name + " failed " + failure);
        }
    }

    private static void check(boolean wanted, String what) {
        if (!wanted) {
            throw new IllegalStateException(what);
        }
    }

    private String broker(String name) {
        return cluster.getBrokerAddrTable().get(name).selectBrokerAddr();
    }

    private Void cluster() throws Exception {
        cluster = admin.examineBrokerClusterInfo();
        check(!cluster.getClusterAddrTable().isEmpty(), "no cluster");
        for (BrokerData data : cluster.getBrokerAddrTable().values()) {
            check(data.getBrokerAddrs().containsKey(MixAll.MASTER_ID), "no master of " + data.getBrokerName());
            for (String address : data.getBrokerAddrs().values()) {
                Map<String, String> table = admin.fetchBrokerRuntimeStats(address).getTable();
                check(!table.get("brokerVersionDesc").isEmpty(), "no version");
                check(Double.parseDouble(table.get("commitLogDiskRatio")) <= 1, "the disk's ratio");
                for (String key : COUNTS) {
                    check(Long.parseLong(table.get(key)) >= 0, key);
                }
                Double.parseDouble(table.get("putTps").split(" ")[0]);
                Double.parseDouble(table.get("getTransferredTps").split(" ")[0]);
                check(table.get("runtime").matches("\\[ \\d+ days, \\d+ hours, \\d+ minutes, \\d+ seconds \\]"), "runtime");
            }
        }
        return null;
    }

    private Void config() throws Exception {
        for (String name : cluster.getBrokerAddrTable().keySet()) {
            Properties found = admin.getBrokerConfig(broker(name));
            check(!found.isEmpty(), "no configuration of " + name);
        }
        return null;
    }

    /** The tasks that collect what the charts show. */
    private Void charts() throws Exception {
        for (String name : cluster.getBrokerAddrTable().keySet()) {
            String[] rates = admin.fetchBrokerRuntimeStats(broker(name)).getTable().get("getTotalTps").split(" ");
            BigDecimal total = new BigDecimal(0);
            for (String rate : rates) {
                total = total.add(new BigDecimal(rate));
            }
            check(total.divide(new BigDecimal(rates.length), 5, BigDecimal.ROUND_HALF_UP).signum() >= 0, "rate");
        }
        long in = 0;
        long out = 0;
        for (BrokerData data : admin.examineTopicRouteInfo(topic).getBrokerDatas()) {
            String master = data.getBrokerAddrs().get(MixAll.MASTER_ID);
            BrokerStatsData put = admin.viewBrokerStatsData(master, BrokerStatsManager.TOPIC_PUT_NUMS, topic);
            check(put.getStatsMinute().getTps() >= 0, "rate of the topic");
            in += StatsAllSubCommand.compute24HourSum(put);
            for (String group : admin.queryTopicConsumeByWho(topic).getGroupList()) {
                String key = String.format("%s@%s", topic, group);
                out += StatsAllSubCommand.compute24HourSum(
                    admin.viewBrokerStatsData(master, BrokerStatsManager.GROUP_GET_NUMS, key));
            }
        }
        check(in >= 10, "messages put today: " + in);
        check(out >= 10, "messages consumed today: " + out);
        return null;
    }

    private Void replicas() throws Exception {
        for (BrokerData data : cluster.getBrokerAddrTable().values()) {
            var state = admin.getBrokerHAStatus(data.getBrokerAddrs().get(MixAll.MASTER_ID));
            check(state.isMaster(), "no master");
            int replicas = state.getHaConnectionInfo().size();
            check(replicas == expected, replicas + " replicas");
            check(state.getInSyncSlaveNums() <= replicas, "in sync " + state.getInSyncSlaveNums());
            state.getHaConnectionInfo().forEach(one -> check(one.getDiff() >= 0, "behind by " + one.getDiff()));
        }
        return null;
    }

    private Void topics() throws Exception {
        Set<String> found = new HashSet<>();
        for (String name : admin.fetchAllTopicList().getTopicList()) {
            boolean ours = name.startsWith(MixAll.RETRY_GROUP_TOPIC_PREFIX) || name.startsWith(MixAll.DLQ_GROUP_TOPIC_PREFIX);
            if (!ours && !TopicValidator.isSystemTopic(name)) {
                check(!admin.examineTopicRouteInfo(name).getQueueDatas().isEmpty(), "no route of " + name);
                found.add(name);
            }
        }
        check(found.contains(topic), "not listed: " + topic);
        DefaultMQProducer producer = producer();
        try {
            producer.getDefaultMQProducerImpl().getmQClientFactory().getMQClientAPIImpl().getSystemTopicList(20_000L);
        } finally {
            producer.shutdown();
        }
        return null;
    }

    private Void topic() throws Exception {
        for (String name : cluster.getBrokerAddrTable().keySet()) {
            TopicConfig config = new TopicConfig("dashboard", 2, 2, 6);
            config.getAttributes().put("+message.type", "NORMAL");
            admin.createAndUpdateTopicConfig(broker(name), config);
            TopicConfig made = admin.examineTopicConfig(broker(name), "dashboard");
            check(made.getWriteQueueNums() == 2 && made.getPerm() == 6, "the topic is " + made);
            check("NORMAL".equals(made.getAttributes().get("message.type")), "attributes " + made.getAttributes());
        }
        check(admin.examineTopicRouteInfo("dashboard").getBrokerDatas().size() >= 1, "no route");
        var states = admin.examineTopicStats(topic).getOffsetTable();
        long messages = states.values().stream().mapToLong(one -> one.getMaxOffset() - one.getMinOffset()).sum();
        long last = states.values().stream().mapToLong(one -> one.getLastUpdateTimestamp()).max().getAsLong();
        check(messages >= 10 && last > 0, messages + " messages, last " + last);
        check(admin.queryTopicConsumeByWho(topic).getGroupList().contains("readers"), "not consumed");
        return null;
    }

    private DefaultMQProducer producer() throws Exception {
        DefaultMQProducer producer = new DefaultMQProducer(MixAll.SELF_TEST_PRODUCER_GROUP, null, true, null);
        producer.setInstanceName(String.valueOf(System.nanoTime()));
        producer.setNamesrvAddr(nameServers);
        producer.start();
        return producer;
    }

    private Void send() throws Exception {
        DefaultMQProducer producer = producer();
        try {
            SendResult sent = producer.send(new Message("dashboard", "tag", "key", "body".getBytes()));
            check(sent.getMsgId() != null && sent.getSendStatus().name().equals("SEND_OK"), "" + sent);
        } finally {
            producer.shutdown();
        }
        return null;
    }

    private Void groups() throws Exception {
        Set<String> found = new HashSet<>();
        for (String name : cluster.getBrokerAddrTable().keySet()) {
            SubscriptionGroupConfig config = new SubscriptionGroupConfig();
            config.setGroupName("dashboard-group");
            config.setRetryMaxTimes(3);
            admin.createAndUpdateSubscriptionGroupConfig(broker(name), config);
            var table = admin.getAllSubscriptionGroup(broker(name), 3_000L).getSubscriptionGroupTable();
            check(table.get("dashboard-group").getRetryMaxTimes() == 3, "" + table.get("dashboard-group"));
            check(admin.examineSubscriptionGroupConfig(broker(name), "dashboard-group") != null, "no group");
            found.addAll(table.keySet());
        }
        check(found.contains("readers"), "not listed: readers");
        for (String group : found) {
            try {
                ConsumeStats stats = admin.examineConsumeStats(group);
                check(stats.computeTotalDiff() >= 0 && stats.getConsumeTps() >= 0, "lag of " + group);
            } catch (org.apache.rocketmq.client.exception.MQClientException never) {
                check(never.getResponseCode() == 206 || never.getResponseCode() == 17, "" + never);
            }
        }
        return null;
    }

    private Void group() throws Exception {
        ConsumerConnection connected = admin.examineConsumerConnectionInfo("readers");
        check(connected.getConnectionSet().size() == 1, "members: " + connected.getConnectionSet());
        check(connected.getMessageModel().name().equals("CLUSTERING"), "" + connected.getMessageModel());
        check(connected.getConsumeType().name().equals("CONSUME_PASSIVELY"), "" + connected.getConsumeType());
        check(org.apache.rocketmq.common.MQVersion.getVersionDesc(connected.computeMinVersion()).startsWith("V5"), "version");
        check(connected.getSubscriptionTable().containsKey(topic), "subscriptions");
        Map<MessageQueue, String> owners = new HashMap<>();
        for (Connection connection : connected.getConnectionSet()) {
            check(connection.getClientAddr().contains(":"), "address " + connection.getClientAddr());
            ConsumerRunningInfo running = admin.getConsumerRunningInfo("readers", connection.getClientId(), false);
            running.getMqTable().keySet().forEach(queue -> owners.put(queue, connection.getClientId()));
            check(admin.getConsumerRunningInfo("readers", connection.getClientId(), true).getJstack() != null, "stack");
        }
        ConsumeStats stats = admin.examineConsumeStats("readers", topic);
        for (MessageQueue queue : stats.getOffsetTable().keySet()) {
            check(owners.containsKey(queue), "nobody has " + queue);
            var offsets = stats.getOffsetTable().get(queue);
            check(offsets.getBrokerOffset() >= offsets.getConsumerOffset(), queue + " " + offsets);
        }
        check(stats.getOffsetTable().values().stream().anyMatch(one -> one.getLastTimestamp() > 0), "times");
        return null;
    }

    private Void producers() throws Exception {
        for (Connection one : admin.examineProducerConnectionInfo("writers", topic).getConnectionSet()) {
            check(one.getClientAddr().contains(":") && one.getVersion() > 0 && one.getLanguage() != null, "" + one);
        }
        for (String name : cluster.getBrokerAddrTable().keySet()) {
            admin.getAllProducerInfo(broker(name)).getData().values().forEach(infos -> infos.forEach(one ->
                check(one.getRemoteIP().contains(":") && one.getLastUpdateTimestamp() > 0, "" + one)));
        }
        return null;
    }

    /** Messages of a time, pulled queue by queue as for a page of them. */
    private List<MessageExt> pulled(String wanted) throws Exception {
        List<MessageExt> found = new ArrayList<>();
        DefaultMQPullConsumer consumer = new DefaultMQPullConsumer(MixAll.TOOLS_CONSUMER_GROUP);
        consumer.setNamesrvAddr(nameServers);
        consumer.setInstanceName(String.valueOf(System.nanoTime()));
        consumer.start();
        try {
            long now = System.currentTimeMillis();
            for (MessageQueue queue : consumer.fetchSubscribeMessageQueues(wanted)) {
                long end = consumer.searchOffset(queue, now) + 1;
                for (long offset = consumer.searchOffset(queue, now - 3_600_000); offset < end;) {
                    PullResult pulled = consumer.pull(queue, "*", offset, 32);
                    if (pulled.getPullStatus() != PullStatus.FOUND) {
                        break;
                    }
                    found.addAll(pulled.getMsgFoundList());
                    offset = pulled.getNextBeginOffset();
                }
            }
        } finally {
            consumer.shutdown();
        }
        return found;
    }

    private Void messages() throws Exception {
        List<MessageExt> found = pulled(topic);
        check(found.size() >= 10, found.size() + " messages");
        check(found.stream().allMatch(one -> one.getStoreTimestamp() > 0 && one.getStoreHost() != null), "times");
        return null;
    }

    private Void message() throws Exception {
        MessageExt found = admin.viewMessage(topic, unique);
        check(found.getTopic().equals(topic) && found.getKeys() != null, "" + found);
        String key = found.getKeys();
        long now = System.currentTimeMillis();
        check(!admin.queryMessage(topic, key, 64, 0, now).getMessageList().isEmpty(), "no message of the key");
        long deadline = now + 20_000; // members commit every five seconds
        while (admin.messageTrackDetail(found).stream().noneMatch(one ->
            one.getConsumerGroup().equals("readers") && one.getTrackType().name().equals("CONSUMED"))) {
            check(System.currentTimeMillis() < deadline, "tracks " + admin.messageTrackDetail(found));
            Thread.sleep(200);
        }
        return null;
    }

    private Void trace() throws Exception {
        Set<String> kinds = new HashSet<>();
        long now = System.currentTimeMillis();
        String traces = TopicValidator.RMQ_SYS_TRACE_TOPIC;
        for (MessageExt one : admin.queryMessage(traces, unique, 64, 0, now).getMessageList()) {
            for (TraceContext context : TraceDataEncoder.decoderFromTraceDataString(new String(one.getBody()))) {
                kinds.add(context.getTraceType().name());
            }
        }
        check(kinds.containsAll(Set.of("Pub", "SubBefore", "SubAfter")), "trace " + kinds);
        return null;
    }

    private Void resend() throws Exception {
        for (Connection one : admin.examineConsumerConnectionInfo("readers").getConnectionSet()) {
            var result = admin.consumeMessageDirectly("readers", one.getClientId(), topic, unique);
            check(result.getConsumeResult() == CMResult.CR_SUCCESS, "" + result);
        }
        return null;
    }

    private Void deadLetters() throws Exception {
        String dead = MixAll.getDLQTopic("readers");
        try {
            admin.examineTopicRouteInfo(dead);
        } catch (org.apache.rocketmq.client.exception.MQClientException none) {
            check(none.getResponseCode() == 17, "" + none);
        }
        DefaultMQProducer producer = producer();
        try {
            MessageExt found = admin.viewMessage(topic, unique);
            var api = producer.getDefaultMQProducerImpl().getmQClientFactory().getMQClientAPIImpl();
            String name = cluster.getBrokerAddrTable().keySet().iterator().next();
            api.consumerSendMessageBack(broker(name), name, found, "readers", -1, 5_000, 16);
        } finally {
            producer.shutdown();
        }
        long deadline = System.currentTimeMillis() + 20_000;
        List<MessageExt> found = List.of();
        while (found.isEmpty() && System.currentTimeMillis() < deadline) {
            try {
                found = pulled(dead);
            } catch (Exception none) {
                Thread.sleep(100);
            }
        }
        check(!found.isEmpty(), "no dead letter");
        check(topic.equals(found.get(0).getProperty("RETRY_TOPIC")), "" + found.get(0).getProperties());
        for (Connection one : admin.examineConsumerConnectionInfo("readers").getConnectionSet()) {
            var result = admin.consumeMessageDirectly("readers", one.getClientId(), dead, found.get(0).getMsgId());
            check(result.getConsumeResult() == CMResult.CR_SUCCESS, "" + result);
        }
        return null;
    }

    private Void reset() throws Exception {
        long now = System.currentTimeMillis();
        check(!admin.resetOffsetByTimestamp(topic, "readers", now, true).isEmpty(), "no queue was reset");
        try {
            admin.resetOffsetByTimestamp("dashboard", "dashboard-group", now, true);
        } catch (org.apache.rocketmq.client.exception.MQClientException offline) {
            check(offline.getResponseCode() == 206, "" + offline);
            check(!admin.resetOffsetByTimestampOld("dashboard-group", "dashboard", now, true).isEmpty(), "none");
        }
        return null;
    }

    private Void operations() throws Exception {
        check(!admin.getNameServerAddressList().isEmpty(), "no name servers");
        Set<String> masters = CommandUtil.fetchMasterAddrByClusterName(admin, cluster.getClusterAddrTable().keySet().iterator().next());
        check(masters.size() == cluster.getBrokerAddrTable().size(), "masters " + masters);
        for (String master : masters) {
            Properties change = new Properties();
            change.put("limits.topics_max", "100001");
            admin.updateBrokerConfig(master, change);
            check("100001".equals(admin.getBrokerConfig(master).get("limits.topics_max")), "not changed");
        }
        return null;
    }

    private Void delete() throws Exception {
        Set<String> names = new HashSet<>(List.of(nameServers.split(";")));
        for (String broker : cluster.getBrokerAddrTable().keySet()) {
            admin.deleteSubscriptionGroup(broker(broker), "dashboard-group", true);
            for (String prefix : List.of(MixAll.RETRY_GROUP_TOPIC_PREFIX, MixAll.DLQ_GROUP_TOPIC_PREFIX)) {
                admin.deleteTopicInBroker(Set.of(broker(broker)), prefix + "dashboard-group");
                admin.deleteTopicInNameServer(names, prefix + "dashboard-group");
            }
            admin.deleteTopicInBroker(Set.of(broker(broker)), "dashboard");
        }
        admin.deleteTopicInNameServer(names, "dashboard");
        check(!admin.fetchAllTopicList().getTopicList().contains("dashboard"), "still listed");
        return null;
    }
}
