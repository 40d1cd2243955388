//! The messages of `pdpb`, `metapb`, `errorpb` and `kvrpcpb` that `tikv-client` sends and reads, with the field numbers
//! of kvproto. Fields that neither side uses are left out: protobuf skips what it does not know.

use prost::{Enumeration, Message};

// metapb

#[derive(Clone, PartialEq, Eq, Message)]
pub struct RegionEpoch {
    #[prost(uint64, tag = "1")]
    pub conf_ver: u64,
    #[prost(uint64, tag = "2")]
    pub version: u64,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub struct Peer {
    #[prost(uint64, tag = "1")]
    pub id: u64,
    #[prost(uint64, tag = "2")]
    pub store_id: u64,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub struct Region {
    #[prost(uint64, tag = "1")]
    pub id: u64,
    #[prost(bytes = "vec", tag = "2")]
    pub start_key: Vec<u8>,
    #[prost(bytes = "vec", tag = "3")]
    pub end_key: Vec<u8>,
    #[prost(message, optional, tag = "4")]
    pub region_epoch: Option<RegionEpoch>,
    #[prost(message, repeated, tag = "5")]
    pub peers: Vec<Peer>,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub struct Store {
    #[prost(uint64, tag = "1")]
    pub id: u64,
    #[prost(string, tag = "2")]
    pub address: String,
    #[prost(string, tag = "5")]
    pub version: String,
}

// pdpb

#[derive(Clone, PartialEq, Eq, Message)]
pub struct ResponseHeader {
    #[prost(uint64, tag = "1")]
    pub cluster_id: u64,
    #[prost(message, optional, tag = "2")]
    pub error: Option<PdError>,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub struct PdError {
    #[prost(int32, tag = "1")]
    pub kind: i32,
    #[prost(string, tag = "2")]
    pub message: String,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub struct Member {
    #[prost(string, tag = "1")]
    pub name: String,
    #[prost(uint64, tag = "2")]
    pub member_id: u64,
    #[prost(string, repeated, tag = "4")]
    pub client_urls: Vec<String>,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub struct GetMembersRequest {}

#[derive(Clone, PartialEq, Eq, Message)]
pub struct GetMembersResponse {
    #[prost(message, optional, tag = "1")]
    pub header: Option<ResponseHeader>,
    #[prost(message, repeated, tag = "2")]
    pub members: Vec<Member>,
    #[prost(message, optional, tag = "3")]
    pub leader: Option<Member>,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub struct TsoRequest {
    #[prost(uint32, tag = "2")]
    pub count: u32,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub struct Timestamp {
    #[prost(int64, tag = "1")]
    pub physical: i64,
    #[prost(int64, tag = "2")]
    pub logical: i64,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub struct TsoResponse {
    #[prost(message, optional, tag = "1")]
    pub header: Option<ResponseHeader>,
    #[prost(uint32, tag = "2")]
    pub count: u32,
    #[prost(message, optional, tag = "3")]
    pub timestamp: Option<Timestamp>,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub struct GetRegionRequest {
    #[prost(bytes = "vec", tag = "2")]
    pub region_key: Vec<u8>,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub struct GetRegionByIdRequest {
    #[prost(uint64, tag = "2")]
    pub region_id: u64,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub struct GetRegionResponse {
    #[prost(message, optional, tag = "1")]
    pub header: Option<ResponseHeader>,
    #[prost(message, optional, tag = "2")]
    pub region: Option<Region>,
    #[prost(message, optional, tag = "3")]
    pub leader: Option<Peer>,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub struct GetStoreRequest {
    #[prost(uint64, tag = "2")]
    pub store_id: u64,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub struct GetStoreResponse {
    #[prost(message, optional, tag = "1")]
    pub header: Option<ResponseHeader>,
    #[prost(message, optional, tag = "2")]
    pub store: Option<Store>,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub struct GetAllStoresRequest {}

#[derive(Clone, PartialEq, Eq, Message)]
pub struct GetAllStoresResponse {
    #[prost(message, optional, tag = "1")]
    pub header: Option<ResponseHeader>,
    #[prost(message, repeated, tag = "2")]
    pub stores: Vec<Store>,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub struct UpdateGcSafePointRequest {
    #[prost(uint64, tag = "2")]
    pub safe_point: u64,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub struct UpdateGcSafePointResponse {
    #[prost(message, optional, tag = "1")]
    pub header: Option<ResponseHeader>,
    #[prost(uint64, tag = "2")]
    pub new_safe_point: u64,
}

// errorpb

#[derive(Clone, PartialEq, Eq, Message)]
pub struct NotLeader {
    #[prost(uint64, tag = "1")]
    pub region_id: u64,
    #[prost(message, optional, tag = "2")]
    pub leader: Option<Peer>,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub struct RegionNotFound {
    #[prost(uint64, tag = "1")]
    pub region_id: u64,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub struct KeyNotInRegion {
    #[prost(bytes = "vec", tag = "1")]
    pub key: Vec<u8>,
    #[prost(uint64, tag = "2")]
    pub region_id: u64,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub struct EpochNotMatch {
    #[prost(message, repeated, tag = "1")]
    pub current_regions: Vec<Region>,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub struct ServerIsBusy {
    #[prost(string, tag = "1")]
    pub reason: String,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub struct StoreNotMatch {
    #[prost(uint64, tag = "1")]
    pub request_store_id: u64,
    #[prost(uint64, tag = "2")]
    pub actual_store_id: u64,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub struct RaftEntryTooLarge {
    #[prost(uint64, tag = "1")]
    pub region_id: u64,
    #[prost(uint64, tag = "2")]
    pub entry_size: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct StaleCommand {}

#[derive(Clone, PartialEq, Eq, Message)]
pub struct DiskFull {
    #[prost(uint64, repeated, tag = "1")]
    pub store_id: Vec<u64>,
    #[prost(string, tag = "2")]
    pub reason: String,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub struct RegionError {
    #[prost(string, tag = "1")]
    pub message: String,
    #[prost(message, optional, tag = "2")]
    pub not_leader: Option<NotLeader>,
    #[prost(message, optional, tag = "3")]
    pub region_not_found: Option<RegionNotFound>,
    #[prost(message, optional, tag = "4")]
    pub key_not_in_region: Option<KeyNotInRegion>,
    #[prost(message, optional, tag = "5")]
    pub epoch_not_match: Option<EpochNotMatch>,
    #[prost(message, optional, tag = "6")]
    pub server_is_busy: Option<ServerIsBusy>,
    #[prost(message, optional, tag = "8")]
    pub store_not_match: Option<StoreNotMatch>,
    #[prost(message, optional, tag = "9")]
    pub raft_entry_too_large: Option<RaftEntryTooLarge>,
    #[prost(message, optional, tag = "7")]
    pub stale_command: Option<StaleCommand>,
    #[prost(message, optional, tag = "15")]
    pub disk_full: Option<DiskFull>,
}

// kvrpcpb: what requests and answers are made of

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Enumeration)]
#[repr(i32)]
pub enum Op {
    Put = 0,
    Del = 1,
    Lock = 2,
    Rollback = 3,
    Insert = 4,
    PessimisticLock = 5,
    CheckNotExists = 6,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Enumeration)]
#[repr(i32)]
pub enum Assertion {
    None = 0,
    Exist = 1,
    NotExist = 2,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Enumeration)]
#[repr(i32)]
pub enum PessimisticAction {
    SkipPessimisticCheck = 0,
    DoPessimisticCheck = 1,
    DoConstraintCheck = 2,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Enumeration)]
#[repr(i32)]
pub enum Action {
    NoAction = 0,
    TtlExpireRollback = 1,
    LockNotExistRollback = 2,
    MinCommitTsPushed = 3,
    TtlExpirePessimisticRollback = 4,
    LockNotExistDoNothing = 5,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Enumeration)]
#[repr(i32)]
pub enum ConflictReason {
    Unknown = 0,
    Optimistic = 1,
    PessimisticRetry = 2,
    SelfRolledBack = 3,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub struct Context {
    #[prost(uint64, tag = "1")]
    pub region_id: u64,
    #[prost(message, optional, tag = "2")]
    pub region_epoch: Option<RegionEpoch>,
    #[prost(message, optional, tag = "3")]
    pub peer: Option<Peer>,
    #[prost(uint64, repeated, tag = "13")]
    pub resolved_locks: Vec<u64>,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub struct LockInfo {
    #[prost(bytes = "vec", tag = "1")]
    pub primary_lock: Vec<u8>,
    #[prost(uint64, tag = "2")]
    pub lock_version: u64,
    #[prost(bytes = "vec", tag = "3")]
    pub key: Vec<u8>,
    #[prost(uint64, tag = "4")]
    pub lock_ttl: u64,
    #[prost(uint64, tag = "5")]
    pub txn_size: u64,
    #[prost(enumeration = "Op", tag = "6")]
    pub lock_type: i32,
    #[prost(uint64, tag = "7")]
    pub lock_for_update_ts: u64,
    #[prost(uint64, tag = "9")]
    pub min_commit_ts: u64,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub struct WriteConflict {
    #[prost(uint64, tag = "1")]
    pub start_ts: u64,
    #[prost(uint64, tag = "2")]
    pub conflict_ts: u64,
    #[prost(bytes = "vec", tag = "3")]
    pub key: Vec<u8>,
    #[prost(bytes = "vec", tag = "4")]
    pub primary: Vec<u8>,
    #[prost(uint64, tag = "5")]
    pub conflict_commit_ts: u64,
    #[prost(enumeration = "ConflictReason", tag = "6")]
    pub reason: i32,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub struct AlreadyExist {
    #[prost(bytes = "vec", tag = "1")]
    pub key: Vec<u8>,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub struct Deadlock {
    #[prost(uint64, tag = "1")]
    pub lock_ts: u64,
    #[prost(bytes = "vec", tag = "2")]
    pub lock_key: Vec<u8>,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub struct CommitTsExpired {
    #[prost(uint64, tag = "1")]
    pub start_ts: u64,
    #[prost(uint64, tag = "2")]
    pub attempted_commit_ts: u64,
    #[prost(bytes = "vec", tag = "3")]
    pub key: Vec<u8>,
    #[prost(uint64, tag = "4")]
    pub min_commit_ts: u64,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub struct TxnNotFound {
    #[prost(uint64, tag = "1")]
    pub start_ts: u64,
    #[prost(bytes = "vec", tag = "2")]
    pub primary_key: Vec<u8>,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub struct AssertionFailed {
    #[prost(uint64, tag = "1")]
    pub start_ts: u64,
    #[prost(bytes = "vec", tag = "2")]
    pub key: Vec<u8>,
    #[prost(enumeration = "Assertion", tag = "3")]
    pub assertion: i32,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub struct PrimaryMismatch {
    #[prost(message, optional, tag = "1")]
    pub lock_info: Option<LockInfo>,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub struct KeyError {
    #[prost(message, optional, tag = "1")]
    pub locked: Option<LockInfo>,
    #[prost(string, tag = "2")]
    pub retryable: String,
    #[prost(string, tag = "3")]
    pub abort: String,
    #[prost(message, optional, tag = "4")]
    pub conflict: Option<WriteConflict>,
    #[prost(message, optional, tag = "5")]
    pub already_exist: Option<AlreadyExist>,
    #[prost(message, optional, tag = "6")]
    pub deadlock: Option<Deadlock>,
    #[prost(message, optional, tag = "7")]
    pub commit_ts_expired: Option<CommitTsExpired>,
    #[prost(message, optional, tag = "8")]
    pub txn_not_found: Option<TxnNotFound>,
    #[prost(message, optional, tag = "10")]
    pub assertion_failed: Option<AssertionFailed>,
    #[prost(message, optional, tag = "11")]
    pub primary_mismatch: Option<PrimaryMismatch>,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub struct KvPair {
    #[prost(message, optional, tag = "1")]
    pub error: Option<KeyError>,
    #[prost(bytes = "vec", tag = "2")]
    pub key: Vec<u8>,
    #[prost(bytes = "vec", tag = "3")]
    pub value: Vec<u8>,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub struct Mutation {
    #[prost(enumeration = "Op", tag = "1")]
    pub op: i32,
    #[prost(bytes = "vec", tag = "2")]
    pub key: Vec<u8>,
    #[prost(bytes = "vec", tag = "3")]
    pub value: Vec<u8>,
    #[prost(enumeration = "Assertion", tag = "4")]
    pub assertion: i32,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub struct TxnInfo {
    #[prost(uint64, tag = "1")]
    pub txn: u64,
    #[prost(uint64, tag = "2")]
    pub status: u64,
}

// kvrpcpb: requests and answers

#[derive(Clone, PartialEq, Eq, Message)]
pub struct GetRequest {
    #[prost(message, optional, tag = "1")]
    pub context: Option<Context>,
    #[prost(bytes = "vec", tag = "2")]
    pub key: Vec<u8>,
    #[prost(uint64, tag = "3")]
    pub version: u64,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub struct GetResponse {
    #[prost(message, optional, tag = "1")]
    pub region_error: Option<RegionError>,
    #[prost(message, optional, tag = "2")]
    pub error: Option<KeyError>,
    #[prost(bytes = "vec", tag = "3")]
    pub value: Vec<u8>,
    #[prost(bool, tag = "4")]
    pub not_found: bool,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub struct BatchGetRequest {
    #[prost(message, optional, tag = "1")]
    pub context: Option<Context>,
    #[prost(bytes = "vec", repeated, tag = "2")]
    pub keys: Vec<Vec<u8>>,
    #[prost(uint64, tag = "3")]
    pub version: u64,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub struct BatchGetResponse {
    #[prost(message, optional, tag = "1")]
    pub region_error: Option<RegionError>,
    #[prost(message, repeated, tag = "2")]
    pub pairs: Vec<KvPair>,
    #[prost(message, optional, tag = "5")]
    pub error: Option<KeyError>,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub struct ScanRequest {
    #[prost(message, optional, tag = "1")]
    pub context: Option<Context>,
    #[prost(bytes = "vec", tag = "2")]
    pub start_key: Vec<u8>,
    #[prost(uint32, tag = "3")]
    pub limit: u32,
    #[prost(uint64, tag = "4")]
    pub version: u64,
    #[prost(bool, tag = "5")]
    pub key_only: bool,
    #[prost(bool, tag = "6")]
    pub reverse: bool,
    #[prost(bytes = "vec", tag = "7")]
    pub end_key: Vec<u8>,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub struct ScanResponse {
    #[prost(message, optional, tag = "1")]
    pub region_error: Option<RegionError>,
    #[prost(message, repeated, tag = "2")]
    pub pairs: Vec<KvPair>,
    #[prost(message, optional, tag = "3")]
    pub error: Option<KeyError>,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub struct PrewriteRequest {
    #[prost(message, optional, tag = "1")]
    pub context: Option<Context>,
    #[prost(message, repeated, tag = "2")]
    pub mutations: Vec<Mutation>,
    #[prost(bytes = "vec", tag = "3")]
    pub primary_lock: Vec<u8>,
    #[prost(uint64, tag = "4")]
    pub start_version: u64,
    #[prost(uint64, tag = "5")]
    pub lock_ttl: u64,
    #[prost(bool, tag = "6")]
    pub skip_constraint_check: bool,
    #[prost(enumeration = "PessimisticAction", repeated, tag = "7")]
    pub pessimistic_actions: Vec<i32>,
    #[prost(uint64, tag = "8")]
    pub txn_size: u64,
    #[prost(uint64, tag = "9")]
    pub for_update_ts: u64,
    #[prost(uint64, tag = "10")]
    pub min_commit_ts: u64,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub struct PrewriteResponse {
    #[prost(message, optional, tag = "1")]
    pub region_error: Option<RegionError>,
    #[prost(message, repeated, tag = "2")]
    pub errors: Vec<KeyError>,
    #[prost(uint64, tag = "3")]
    pub min_commit_ts: u64,
    #[prost(uint64, tag = "4")]
    pub one_pc_commit_ts: u64,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub struct PessimisticLockRequest {
    #[prost(message, optional, tag = "1")]
    pub context: Option<Context>,
    #[prost(message, repeated, tag = "2")]
    pub mutations: Vec<Mutation>,
    #[prost(bytes = "vec", tag = "3")]
    pub primary_lock: Vec<u8>,
    #[prost(uint64, tag = "4")]
    pub start_version: u64,
    #[prost(uint64, tag = "5")]
    pub lock_ttl: u64,
    #[prost(uint64, tag = "6")]
    pub for_update_ts: u64,
    #[prost(int64, tag = "8")]
    pub wait_timeout: i64,
    #[prost(bool, tag = "10")]
    pub return_values: bool,
    #[prost(uint64, tag = "11")]
    pub min_commit_ts: u64,
    #[prost(bool, tag = "12")]
    pub check_existence: bool,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub struct PessimisticLockResponse {
    #[prost(message, optional, tag = "1")]
    pub region_error: Option<RegionError>,
    #[prost(message, repeated, tag = "2")]
    pub errors: Vec<KeyError>,
    #[prost(bytes = "vec", repeated, tag = "5")]
    pub values: Vec<Vec<u8>>,
    #[prost(bool, repeated, tag = "6")]
    pub not_founds: Vec<bool>,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub struct PessimisticRollbackRequest {
    #[prost(message, optional, tag = "1")]
    pub context: Option<Context>,
    #[prost(uint64, tag = "2")]
    pub start_version: u64,
    #[prost(uint64, tag = "3")]
    pub for_update_ts: u64,
    #[prost(bytes = "vec", repeated, tag = "4")]
    pub keys: Vec<Vec<u8>>,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub struct PessimisticRollbackResponse {
    #[prost(message, optional, tag = "1")]
    pub region_error: Option<RegionError>,
    #[prost(message, repeated, tag = "2")]
    pub errors: Vec<KeyError>,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub struct TxnHeartBeatRequest {
    #[prost(message, optional, tag = "1")]
    pub context: Option<Context>,
    #[prost(bytes = "vec", tag = "2")]
    pub primary_lock: Vec<u8>,
    #[prost(uint64, tag = "3")]
    pub start_version: u64,
    #[prost(uint64, tag = "4")]
    pub advise_lock_ttl: u64,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub struct TxnHeartBeatResponse {
    #[prost(message, optional, tag = "1")]
    pub region_error: Option<RegionError>,
    #[prost(message, optional, tag = "2")]
    pub error: Option<KeyError>,
    #[prost(uint64, tag = "3")]
    pub lock_ttl: u64,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub struct CheckTxnStatusRequest {
    #[prost(message, optional, tag = "1")]
    pub context: Option<Context>,
    #[prost(bytes = "vec", tag = "2")]
    pub primary_key: Vec<u8>,
    #[prost(uint64, tag = "3")]
    pub lock_ts: u64,
    #[prost(uint64, tag = "4")]
    pub caller_start_ts: u64,
    #[prost(uint64, tag = "5")]
    pub current_ts: u64,
    #[prost(bool, tag = "6")]
    pub rollback_if_not_exist: bool,
    #[prost(bool, tag = "8")]
    pub resolving_pessimistic_lock: bool,
    #[prost(bool, tag = "9")]
    pub verify_is_primary: bool,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub struct CheckTxnStatusResponse {
    #[prost(message, optional, tag = "1")]
    pub region_error: Option<RegionError>,
    #[prost(message, optional, tag = "2")]
    pub error: Option<KeyError>,
    #[prost(uint64, tag = "3")]
    pub lock_ttl: u64,
    #[prost(uint64, tag = "4")]
    pub commit_version: u64,
    #[prost(enumeration = "Action", tag = "5")]
    pub action: i32,
    #[prost(message, optional, tag = "6")]
    pub lock_info: Option<LockInfo>,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub struct CheckSecondaryLocksRequest {
    #[prost(message, optional, tag = "1")]
    pub context: Option<Context>,
    #[prost(bytes = "vec", repeated, tag = "2")]
    pub keys: Vec<Vec<u8>>,
    #[prost(uint64, tag = "3")]
    pub start_version: u64,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub struct CheckSecondaryLocksResponse {
    #[prost(message, optional, tag = "1")]
    pub region_error: Option<RegionError>,
    #[prost(message, optional, tag = "2")]
    pub error: Option<KeyError>,
    #[prost(message, repeated, tag = "3")]
    pub locks: Vec<LockInfo>,
    #[prost(uint64, tag = "4")]
    pub commit_ts: u64,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub struct CommitRequest {
    #[prost(message, optional, tag = "1")]
    pub context: Option<Context>,
    #[prost(uint64, tag = "2")]
    pub start_version: u64,
    #[prost(bytes = "vec", repeated, tag = "3")]
    pub keys: Vec<Vec<u8>>,
    #[prost(uint64, tag = "4")]
    pub commit_version: u64,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub struct CommitResponse {
    #[prost(message, optional, tag = "1")]
    pub region_error: Option<RegionError>,
    #[prost(message, optional, tag = "2")]
    pub error: Option<KeyError>,
    #[prost(uint64, tag = "3")]
    pub commit_version: u64,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub struct BatchRollbackRequest {
    #[prost(message, optional, tag = "1")]
    pub context: Option<Context>,
    #[prost(uint64, tag = "2")]
    pub start_version: u64,
    #[prost(bytes = "vec", repeated, tag = "3")]
    pub keys: Vec<Vec<u8>>,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub struct BatchRollbackResponse {
    #[prost(message, optional, tag = "1")]
    pub region_error: Option<RegionError>,
    #[prost(message, optional, tag = "2")]
    pub error: Option<KeyError>,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub struct ScanLockRequest {
    #[prost(message, optional, tag = "1")]
    pub context: Option<Context>,
    #[prost(uint64, tag = "2")]
    pub max_version: u64,
    #[prost(bytes = "vec", tag = "3")]
    pub start_key: Vec<u8>,
    #[prost(uint32, tag = "4")]
    pub limit: u32,
    #[prost(bytes = "vec", tag = "5")]
    pub end_key: Vec<u8>,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub struct ScanLockResponse {
    #[prost(message, optional, tag = "1")]
    pub region_error: Option<RegionError>,
    #[prost(message, optional, tag = "2")]
    pub error: Option<KeyError>,
    #[prost(message, repeated, tag = "3")]
    pub locks: Vec<LockInfo>,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub struct ResolveLockRequest {
    #[prost(message, optional, tag = "1")]
    pub context: Option<Context>,
    #[prost(uint64, tag = "2")]
    pub start_version: u64,
    #[prost(uint64, tag = "3")]
    pub commit_version: u64,
    #[prost(message, repeated, tag = "4")]
    pub txn_infos: Vec<TxnInfo>,
    #[prost(bytes = "vec", repeated, tag = "5")]
    pub keys: Vec<Vec<u8>>,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub struct ResolveLockResponse {
    #[prost(message, optional, tag = "1")]
    pub region_error: Option<RegionError>,
    #[prost(message, optional, tag = "2")]
    pub error: Option<KeyError>,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub struct UnsafeDestroyRangeRequest {
    #[prost(bytes = "vec", tag = "2")]
    pub start_key: Vec<u8>,
    #[prost(bytes = "vec", tag = "3")]
    pub end_key: Vec<u8>,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub struct UnsafeDestroyRangeResponse {
    #[prost(message, optional, tag = "1")]
    pub region_error: Option<RegionError>,
    #[prost(string, tag = "2")]
    pub error: String,
}
