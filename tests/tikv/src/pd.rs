//! PD: timestamps, and where the regions are.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use futures::{Stream, StreamExt};
use hyper::body::Incoming;
use tonic::body::Body;
use tonic::{Status, Streaming};

use crate::Shared;
use crate::inject::Rpc;
use crate::mvcc::{Ts, compose, physical_ms};
use crate::proto::*;
use crate::region::{Area, decode};
use crate::serve::{Cut, after, before, streaming, unary};

const CLUSTER_ID: u64 = 7_380_000_000_000_000_001;
const LOGICAL_MAX: u64 = 1 << 18;

/// Hands out timestamps that rise strictly, near to the time of day.
#[derive(Debug, Default)]
pub(crate) struct Oracle {
    last: Ts,
    ahead: Duration,
}

impl Oracle {
    /// The last of `count` timestamps in a row, all with the same milliseconds.
    pub fn take(&mut self, count: u64) -> Ts {
        let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let now_ms = (since_epoch + self.ahead).as_millis() as u64;
        let (last_ms, last_logical) = (physical_ms(self.last), self.last % LOGICAL_MAX);
        self.last = match now_ms > last_ms {
            true => compose(now_ms, count),
            false if last_logical + count < LOGICAL_MAX => self.last + count,
            false => compose(last_ms + 1, count),
        };
        self.last
    }

    pub fn advance(&mut self, time: Duration) {
        self.ahead += time;
    }
}

fn header() -> Option<ResponseHeader> {
    Some(ResponseHeader { cluster_id: CLUSTER_ID, error: None })
}

/// `None`: there is no such call.
pub(crate) async fn answer(
    path: &str,
    request: http::Request<Incoming>,
    shared: Arc<Shared>,
    cut: Cut,
) -> Option<http::Response<Body>> {
    let name = path.strip_prefix("/pdpb.PD/")?;
    Some(match name {
        "GetMembers" => call(request, shared, cut, Rpc::GetMembers, get_members).await,
        "GetRegion" => call(request, shared, cut, Rpc::GetRegion, get_region).await,
        "GetRegionByID" => call(request, shared, cut, Rpc::GetRegionById, get_region_by_id).await,
        "GetStore" => call(request, shared, cut, Rpc::GetStore, get_store).await,
        "GetAllStores" => call(request, shared, cut, Rpc::GetAllStores, get_all_stores).await,
        "UpdateGCSafePoint" => call(request, shared, cut, Rpc::UpdateGcSafePoint, update_gc_safe_point).await,
        "Tso" => streaming(request, |requests| timestamps(requests, shared.clone(), cut.clone())).await,
        _ => return None,
    })
}

async fn call<Q, A>(
    request: http::Request<Incoming>,
    shared: Arc<Shared>,
    cut: Cut,
    rpc: Rpc,
    run: fn(&Shared, Q) -> A,
) -> http::Response<Body>
where
    Q: prost::Message + Default + 'static,
    A: prost::Message + Default + 'static,
{
    unary(request, |question| {
        let (shared, cut) = (shared.clone(), cut.clone());
        async move {
            let fault = before(&shared, &cut, rpc).await?;
            after(fault, &cut, run(&shared, question)).await
        }
    })
    .await
}

fn get_members(shared: &Shared, _: GetMembersRequest) -> GetMembersResponse {
    let url = format!("http://{}", shared.pd);
    let member = Member { name: "pd".to_owned(), member_id: 1, client_urls: vec![url] };
    GetMembersResponse { header: header(), members: vec![member.clone()], leader: Some(member) }
}

fn describe(shared: &Shared, area: Option<&Area>) -> GetRegionResponse {
    let stores = shared.stores.len() as u64;
    GetRegionResponse {
        header: header(),
        region: area.map(|area| area.describe(stores)),
        leader: area.map(Area::leader),
    }
}

/// A key that is not encoded belongs to no region: a client that forgot to encode must not work by chance.
fn get_region(shared: &Shared, request: GetRegionRequest) -> GetRegionResponse {
    let state = shared.state.lock();
    let area = decode(&request.region_key).map(|key| state.regions.by_key(&key).clone());
    describe(shared, area.as_ref())
}

fn get_region_by_id(shared: &Shared, request: GetRegionByIdRequest) -> GetRegionResponse {
    describe(shared, shared.state.lock().regions.by_id(request.region_id))
}

fn store(shared: &Shared, id: u64) -> Option<Store> {
    let address = shared.stores.get(id.checked_sub(1)? as usize)?;
    Some(Store { id, address: address.to_string(), version: "8.5.0".to_owned() })
}

fn get_store(shared: &Shared, request: GetStoreRequest) -> GetStoreResponse {
    GetStoreResponse { header: header(), store: store(shared, request.store_id) }
}

fn get_all_stores(shared: &Shared, _: GetAllStoresRequest) -> GetAllStoresResponse {
    let stores = (1..=shared.stores.len() as u64).filter_map(|id| store(shared, id)).collect();
    GetAllStoresResponse { header: header(), stores }
}

/// TiKV collects garbage some time after this; here it is gone at once.
fn update_gc_safe_point(shared: &Shared, request: UpdateGcSafePointRequest) -> UpdateGcSafePointResponse {
    let new_safe_point = shared.state.lock().mvcc.collect_garbage(request.safe_point);
    UpdateGcSafePointResponse { header: header(), new_safe_point }
}

fn timestamps(
    requests: Streaming<TsoRequest>,
    shared: Arc<Shared>,
    cut: Cut,
) -> impl Stream<Item = Result<TsoResponse, Status>> + Send + 'static {
    requests.then(move |request| {
        let (shared, cut) = (shared.clone(), cut.clone());
        async move {
            let count = request?.count;
            let fault = before(&shared, &cut, Rpc::Tso).await?;
            let ts = shared.oracle.lock().take(u64::from(count));
            let timestamp = Timestamp { physical: physical_ms(ts) as i64, logical: (ts % LOGICAL_MAX) as i64 };
            after(fault, &cut, TsoResponse { header: header(), count, timestamp: Some(timestamp) }).await
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timestamps_rise_and_a_batch_lies_in_one_millisecond() {
        let mut oracle = Oracle::default();
        let mut last = 0;
        for count in [1, 64, LOGICAL_MAX / 2, LOGICAL_MAX / 2, 1] {
            let ts = oracle.take(count);
            assert!(ts - count >= last, "{ts} - {count} < {last}");
            assert_eq!(physical_ms(ts), physical_ms(ts - count + 1));
            last = ts;
        }
        oracle.advance(Duration::from_secs(60));
        assert!(physical_ms(oracle.take(1)) >= physical_ms(last) + 59_000);
    }
}
