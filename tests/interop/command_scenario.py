"""All commands of RocketMQ's `mqadmin`, in the order of one scenario; several lines where a command has several roads.

`{ns}`, `{broker}`: addresses; `{folder}`: a folder with the files of `write_files`; `{client}`: a connected consumer;
`{unique}`, `{offset}`: the ids of the last message it got. Pure.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

MEMBERS_TOPIC = "seen"
"""The topic of the connected producer and consumer."""
ENDLESS = ("startMonitoring", "clusterRT")
"""Commands that go on until they are interrupted."""
LINES = """
updateTopic -n {ns} -c DefaultCluster -t t -r 4 -w 4
updateTopic -n {ns} -b {broker} -t other -r 2 -w 2 -o true
updateTopic -n {ns} -b {broker} -t bad*name
updateTopicList -n {ns} -b {broker} -f {folder}/topics.json
topicList -n {ns}
topicList -n {ns} -c
topicClusterList -n {ns} -t t
topicRoute -n {ns} -t t
topicRoute -n {ns} -t t -l
topicRoute -n {ns} -t nowhere
updateTopicPerm -n {ns} -c DefaultCluster -t t -p 4
updateTopicPerm -n {ns} -b {broker} -t t -p 6
updateOrderConf -n {ns} -t other -m put -v broker-a:2
updateOrderConf -n {ns} -t other -m get
updateOrderConf -n {ns} -t other -m delete
allocateMQ -n {ns} -t t -i 10.0.0.1,10.0.0.2
updateSubGroup -n {ns} -c DefaultCluster -g g
updateSubGroup -n {ns} -b {broker} -g h -q 2 -r 3
updateSubGroupList -n {ns} -b {broker} -f {folder}/groups.json
getConsumerConfig -n {ns} -g g
setConsumeMode -n {ns} -c DefaultCluster -t t -g p -m POP -q 0
sendMessage -n {ns} -t t -p first -k key-1 -c tag -b broker-a -i 0
sendMessage -n {ns} -t t -p second -b broker-a -i 1
sendMessage -n {ns} -t nowhere/at*all -p body
consumeMessage -n {ns} -t t -g g -c 10
consumeMessage -n {ns} -t t -b broker-a -i 0 -o 0 -c 1 -g g
queryMsgById -n {ns} -t seen -i {offset}
queryMsgById -n {ns} -t seen -i {offset} -g readers -d {client}
queryMsgByKey -n {ns} -t t -k key-1
queryMsgByKey -n {ns} -t t -k none
queryMsgByUniqueKey -n {ns} -t seen -i {unique}
queryMsgByUniqueKey -n {ns} -t seen -i {unique} -g readers -d {client}
queryMsgByOffset -n {ns} -t t -b broker-a -i 0 -o 0
queryMsgTraceById -n {ns} -i {unique}
printMsg -n {ns} -t t -d true
printMsg -n {ns} -t t -s tag
printMsgByQueue -n {ns} -t t -a broker-a -i 0 -p true -d true
queryCq -n {ns} -t t -q 0 -i 0 -c 10 -b {broker}
topicStatus -n {ns} -t t
topicStatus -n {ns} -t nowhere
consumerProgress -n {ns}
consumerProgress -n {ns} -g readers
consumerProgress -n {ns} -g readers -t seen
consumerProgress -n {ns} -g nobody
consumerConnection -n {ns} -g readers
consumerConnection -n {ns} -g nobody
consumerStatus -n {ns} -g readers
consumerStatus -n {ns} -g readers -i {client}
consumerStatus -n {ns} -g nobody
producer -n {ns} -b {broker}
producerConnection -n {ns} -g writers -t seen
producerConnection -n {ns} -g nobody -t seen
brokerConsumeStats -n {ns} -b {broker}
statsAll -n {ns} -t seen
cloneGroupOffset -n {ns} -s readers -d clone -t seen
skipAccumulatedMessage -n {ns} -g g -t t
resetOffsetByTime -n {ns} -g g -t t -s 0
resetOffsetByTime -n {ns} -g g -t t -s -1
resetOffsetByTime -n {ns} -g readers -t seen -s -1
clusterList -n {ns}
clusterList -n {ns} -m
brokerStatus -n {ns} -b {broker}
brokerStatus -n {ns} -c DefaultCluster
getBrokerConfig -n {ns} -b {broker}
updateBrokerConfig -n {ns} -b {broker} -k noSuchKey -v 1
updateBrokerConfig -n {ns} -b {broker} -k limits.topics_max -v 777
sendMsgStatus -n {ns} -b broker-a -c 2
checkMsgSendRT -n {ns} -t t -a 2
haStatus -n {ns} -b {broker}
exportMetadata -n {ns} -c DefaultCluster -f {folder}
exportConfigs -n {ns} -c DefaultCluster -f {folder}
exportMetrics -n {ns} -c DefaultCluster -f {folder}
exportPopRecord -n {ns} -c DefaultCluster -d true
exportMetadataInRocksDB -p {folder}/none -t topics
rocksDBConfigToJson -n {ns} -b {broker} -t topics
checkRocksdbCqWriteProgress -n {ns} -c DefaultCluster -t t
switchTimerEngine -n {ns} -b {broker} -e F
dumpCompactionLog -f {folder}/none
updateKvConfig -n {ns} -s NS -k K -v V
deleteKvConfig -n {ns} -s NS -k K
wipeWritePerm -n {ns} -b broker-a
addWritePerm -n {ns} -b broker-a
getNamesrvConfig -n {ns}
updateNamesrvConfig -n {ns} -k noSuchKey -v 1
cleanExpiredCQ -n {ns} -b {broker}
deleteExpiredCommitLog -n {ns} -b {broker}
cleanUnusedTopic -n {ns} -b {broker}
getColdDataFlowCtrInfo -n {ns} -b {broker}
updateColdDataFlowCtrGroupConfig -n {ns} -b {broker} -g g -v 1000
removeColdDataFlowCtrGroupConfig -n {ns} -b {broker} -g g
setCommitLogReadAheadMode -n {ns} -b {broker} -m 0
updateStaticTopic -n {ns} -t static -qn 2 -c DefaultCluster
remappingStaticTopic -n {ns} -t static -c DefaultCluster
resetMasterFlushOffset -n {ns} -b {broker} -o 0
addBroker -c {broker} -b {folder}/none
removeBroker -c {broker} -b DefaultCluster:broker-a:0
getBrokerEpoch -n {ns} -b broker-a
getControllerMetaData -a {ns}
getControllerConfig -a {ns}
updateControllerConfig -a {ns} -k a -v 1
getSyncStateSet -a {ns} -b broker-a
electMaster -a {ns} -n {ns} -c DefaultCluster -bn broker-a -b 2
cleanBrokerMetadata -a {ns} -bn broker-a -b 9 -c DefaultCluster
createUser -n {ns} -b {broker} -u ann -p secret -t Normal
updateUser -n {ns} -b {broker} -u ann -p other
getUser -n {ns} -b {broker} -u ann
listUser -n {ns} -b {broker}
createAcl -n {ns} -b {broker} -s User:ann -r Topic:t -a Pub -d Allow
updateAcl -n {ns} -b {broker} -s User:ann -r Topic:t -a Sub -d Allow
getAcl -n {ns} -b {broker} -s User:ann
listAcl -n {ns} -b {broker}
copyUser -n {ns} -f {broker} -t {broker} -u ann
copyAcl -n {ns} -f {broker} -t {broker} -s User:ann
deleteAcl -n {ns} -b {broker} -s User:ann
deleteUser -n {ns} -b {broker} -u ann
updateTopic -n {ns} -c DefaultCluster -t parent -a +message.type=LITE
updateSubGroup -n {ns} -c DefaultCluster -g lites --attributes +lite.bind.topic=parent
getBrokerLiteInfo -n {ns} -b {broker}
getParentTopicInfo -n {ns} -p parent
getParentTopicInfo -n {ns} -p t
getLiteTopicInfo -n {ns} -p parent -l one
getLiteGroupInfo -n {ns} -p parent -g lites
getLiteClientInfo -n {ns} -p parent -g lites -c nobody
triggerLiteDispatch -n {ns} -p parent -g lites
deleteSubGroup -n {ns} -c DefaultCluster -g g
deleteSubGroup -n {ns} -c DefaultCluster -g never
deleteTopic -n {ns} -c DefaultCluster -t t
deleteTopic -n {ns} -c DefaultCluster -t never
startMonitoring -n {ns}
clusterRT -n {ns} -a 2 -i 1
"""
COMMANDS = [line for line in LINES.splitlines() if line]

DONE, HANGS = "done", "hangs"
NOT_OFFERED = "not offered, refused by the name of the feature"
CONTROLLERS = "a request to controllers, which LightMQ's name servers are"
CONFIGURATION = "an unknown key is refused, and what is read at the start only; RocketMQ accepts any key"
USERS = "without users configured both refuse; RocketMQ's broker with a Java exception"
DIFFERENCES = {
    "cloneGroupOffset": ("CODE 26", DONE, "a group that commits is one; RocketMQ wants it created first"),
    "updateBrokerConfig -n {ns} -b {broker} -k noSuchKey": (DONE, "CODE 29", CONFIGURATION),
    "updateNamesrvConfig": (DONE, "CODE 16", CONFIGURATION),
    "exportPopRecord": (DONE, "CODE 3", NOT_OFFERED),
    "checkRocksdbCqWriteProgress": (DONE, "CODE 3", NOT_OFFERED),
    "switchTimerEngine": (DONE, "CODE 3", NOT_OFFERED),
    "getColdDataFlowCtrInfo": (DONE, "CODE 3", NOT_OFFERED),
    "updateColdDataFlowCtrGroupConfig": (DONE, "CODE 3", NOT_OFFERED),
    "removeColdDataFlowCtrGroupConfig": (DONE, "CODE 3", NOT_OFFERED),
    "setCommitLogReadAheadMode": (DONE, "CODE 3", NOT_OFFERED),
    "updateStaticTopic": (DONE, "CODE 3", NOT_OFFERED),
    "remappingStaticTopic": (DONE, "SubCommandException", "there is no static topic to be moved"),
    "resetMasterFlushOffset": (DONE, "CODE 3", NOT_OFFERED),
    "getBrokerEpoch": ("CODE 1", "CODE 3", "both refuse it where no controller is; the code for it is 3"),
    "getControllerMetaData": ("CODE 3", DONE, CONTROLLERS),
    "getControllerConfig": ("CODE 3", DONE, CONTROLLERS),
    "updateControllerConfig": ("CODE 3", "CODE 16", CONTROLLERS),
    "getSyncStateSet": ("CODE 3", DONE, CONTROLLERS),
    "electMaster": ("CODE 3", "CODE 2008", CONTROLLERS),
    "cleanBrokerMetadata": ("CODE 3", "CODE 2008", CONTROLLERS),
    **dict.fromkeys(
        (
            "createUser", "updateUser", "getUser", "listUser", "deleteUser", "copyUser",
            "createAcl", "updateAcl", "getAcl", "listAcl", "deleteAcl", "copyAcl",
        ),
        ("CODE 1", "CODE 3", USERS),
    ),
}  # fmt: skip
"""Beginning of a line -> (outcome at RocketMQ's broker, outcome here, reason); all others have the same outcome."""


def difference(line: str) -> tuple[str, str, str] | None:
    """The row of a line; None: the outcome is the same."""
    return next((row for name, row in DIFFERENCES.items() if line == name or line.startswith(name + " ")), None)


def outcome(printed: list[str]) -> str:
    """What became of a command, by its output up to `<== ended`."""
    text = "\n".join(printed)
    if printed[-1] == "<== hangs":
        return HANGS
    if code := re.search(r"CODE: (\d+)", text):
        return f"CODE {code[1]}"
    failure = re.search(r"(\w+Exception)\b", text)
    return failure[1] if failure else DONE


def write_files(folder: Path) -> None:
    """What commands read."""
    topics = [{"topicName": name, "readQueueNums": 1, "writeQueueNums": 1, "perm": 6} for name in ("l1", "l2")]
    (folder / "topics.json").write_text(json.dumps(topics))
    (folder / "groups.json").write_text(json.dumps([{"groupName": name} for name in ("g1", "g2")]))
