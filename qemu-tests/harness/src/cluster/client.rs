//! An administrator's client for cases: typed calls with the admin's kubeconfig, and waiting by watch.
//!
//! In: a kubeconfig. Out: answers; at a deadline, the present objects. Invariant: a wait looks at a complete list
//! first and again at every change; there is no polling.

use std::collections::BTreeMap;
use std::fmt::{Debug, Write};
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use futures_util::StreamExt;
use k8s_openapi::{ClusterResourceScope, NamespaceResourceScope};
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Api, Client, Config, Resource};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio::runtime::Runtime;

/// A client with a runtime of its own.
pub struct ClusterClient {
    runtime: Runtime,
    client: Client,
}

/// Traits that all API types implement.
pub trait Object:
    Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + Serialize + Send + 'static
{
}
impl<K> Object for K where
    K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + Serialize + Send + 'static
{
}

impl ClusterClient {
    /// A client with the credentials of `kubeconfig`.
    ///
    /// # Errors
    /// If it cannot be read.
    pub fn new(kubeconfig: &Path) -> Result<ClusterClient> {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()
            .context("start an async runtime")?;
        let config = kube::config::Kubeconfig::read_from(kubeconfig).context("read the kubeconfig")?;
        let client = runtime.block_on(async {
            let mut config =
                Config::from_custom_kubeconfig(config, &kube::config::KubeConfigOptions::default())
                    .await
                    .context("understand the kubeconfig")?;
            // A watch is quiet for minutes; the caller of a call has its own time limit.
            config.read_timeout = Some(Duration::from_secs(600));
            // The API server is on the harness's own loopback: the machine's proxy must not be used.
            config.proxy_url = None;
            Client::try_from(config).context("make a client")
        })?;
        Ok(ClusterClient { runtime, client })
    }

    /// The client itself, for calls that have no method here.
    #[must_use]
    pub fn kube(&self) -> Client {
        self.client.clone()
    }

    /// Runs calls of that client.
    pub fn block_on<F: Future>(&self, calls: F) -> F::Output {
        self.runtime.block_on(calls)
    }

    /// Runtime of a cluster's background tasks, which end with it.
    #[must_use]
    pub fn handle(&self) -> &tokio::runtime::Handle {
        self.runtime.handle()
    }

    /// Calls for objects without a namespace.
    #[must_use]
    pub fn all<K: Object + Resource<Scope = ClusterResourceScope>>(&self) -> Api<K> {
        Api::all(self.client.clone())
    }

    /// Calls for objects of a namespace.
    #[must_use]
    pub fn of<K: Object + Resource<Scope = NamespaceResourceScope>>(&self, namespace: &str) -> Api<K> {
        Api::namespaced(self.client.clone(), namespace)
    }

    /// Creates an object from JSON.
    ///
    /// # Errors
    /// If it is no `K`, or the API server refuses it.
    pub fn create<K: Object>(&self, api: &Api<K>, object: Value) -> Result<K> {
        let object: K = serde_json::from_value(object).context("an object for the API server")?;
        let params = PostParams::default();
        self.within(api.create(&params, &object))?
            .with_context(|| format!("create {} {:?}", K::kind(&()), object.meta().name))
    }

    /// Reads an object; `None` if there is none.
    ///
    /// # Errors
    /// If the API server does not answer.
    pub fn get<K: Object>(&self, api: &Api<K>, name: &str) -> Result<Option<K>> {
        self.within(api.get_opt(name))?.with_context(|| format!("get {} {name}", K::kind(&())))
    }

    /// Merges JSON into an object.
    ///
    /// # Errors
    /// If the API server refuses it.
    pub fn merge<K: Object>(&self, api: &Api<K>, name: &str, patch: &Value) -> Result<K> {
        let params = PatchParams::default();
        let patch = Patch::Merge(patch);
        self.within(api.patch(name, &params, &patch))?
            .with_context(|| format!("patch {} {name}", K::kind(&())))
    }

    /// Deletes an object, with its own grace period or another one.
    ///
    /// # Errors
    /// If the API server refuses it.
    pub fn delete<K: Object>(&self, api: &Api<K>, name: &str, grace_s: Option<u32>) -> Result<()> {
        let params = DeleteParams { grace_period_seconds: grace_s, ..DeleteParams::default() };
        self.within(api.delete(name, &params))?.with_context(|| format!("delete {} {name}", K::kind(&())))?;
        Ok(())
    }

    /// The text at a path of the API server that is no resource.
    ///
    /// # Errors
    /// If it does not answer with success.
    pub fn raw(&self, path: &str) -> Result<String> {
        let request = http::Request::get(path).body(Vec::new()).context("a path")?;
        self.within(self.client.request_text(request))?.with_context(|| format!("GET {path}"))
    }

    /// Waits until the API server calls itself ready.
    ///
    /// # Errors
    /// At the deadline, with its last answer.
    pub fn await_readyz(&self, limit: Duration) -> Result<()> {
        let deadline = Instant::now() + limit;
        // The API server sends no signal of its readiness: its port is open before it is ready.
        let mut retry = self.block_on(async { tokio::time::interval(Duration::from_millis(200)) });
        loop {
            match self.raw("/readyz") {
                Ok(_) => return Ok(()),
                Err(e) if Instant::now() >= deadline => {
                    return Err(e.context(format!("the API server is not ready after {} s", limit.as_secs())));
                }
                Err(_) => {
                    self.block_on(retry.tick());
                }
            }
        }
    }

    /// A call that gets an answer soon or fails.
    fn within<F: Future>(&self, call: F) -> Result<F::Output> {
        self.runtime
            .block_on(async { tokio::time::timeout(Duration::from_secs(30), call).await })
            .context("the API server did not answer within 30 s")
    }

    /// Waits until `look` returns a value for the objects of `api`, by name.
    ///
    /// # Errors
    /// At the deadline: the expectation, and the present objects.
    pub fn wait<K: Object, T>(
        &self,
        api: &Api<K>,
        limit_s: u64,
        what: &str,
        mut look: impl FnMut(&BTreeMap<String, K>) -> Option<T>,
    ) -> Result<T> {
        let mut objects: BTreeMap<String, K> = BTreeMap::new();
        let mut is_complete = false;
        let mut problem = None;
        let watch = async {
            // Some cases break watches: go on until the deadline.
            let mut events = watcher(api.clone(), watcher::Config::default()).default_backoff().boxed();
            while let Some(event) = events.next().await {
                let event = match event {
                    Ok(event) => event,
                    Err(e) => {
                        problem = Some(e);
                        continue;
                    }
                };
                apply(event, &mut objects, &mut is_complete);
                if is_complete && let Some(found) = look(&objects) {
                    return Some(found);
                }
            }
            None
        };
        let limit = Duration::from_secs(limit_s);
        let found = self.runtime.block_on(async { tokio::time::timeout(limit, watch).await });
        if let Ok(Some(found)) = found {
            return Ok(found);
        }
        let mut seen = describe(&objects);
        if let Some(problem) = problem {
            // Writing to a String cannot fail.
            let _ = write!(seen, "\nlast error of the watch: {problem}");
        }
        bail!("waited {limit_s} s for {what}; instead there is {seen}")
    }
}

fn apply<K: Object>(event: watcher::Event<K>, objects: &mut BTreeMap<String, K>, is_complete: &mut bool) {
    let key = |k: &K| k.meta().name.clone().unwrap_or_default();
    match event {
        watcher::Event::Init => {
            objects.clear();
            *is_complete = false;
        }
        watcher::Event::InitDone => *is_complete = true,
        watcher::Event::InitApply(object) | watcher::Event::Apply(object) => {
            objects.insert(key(&object), object);
        }
        watcher::Event::Delete(object) => {
            objects.remove(&key(&object));
        }
    }
}

fn describe<K: Object>(objects: &BTreeMap<String, K>) -> String {
    if objects.is_empty() {
        return format!("no {}", K::kind(&()));
    }
    let lines: Vec<String> = objects
        .iter()
        .map(|(name, object)| {
            let status = serde_json::to_value(object).map(|v| v["status"].to_string()).unwrap_or_default();
            format!("{} {name}: {}", K::kind(&()), status.chars().take(1500).collect::<String>())
        })
        .collect();
    format!("\n{}", lines.join("\n"))
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::Node;

    use super::*;

    fn node(name: &str) -> Node {
        serde_json::from_value(serde_json::json!({"metadata": {"name": name}})).unwrap()
    }

    #[test]
    fn a_list_counts_when_it_is_whole() {
        let (mut objects, mut whole) = (BTreeMap::new(), false);
        let mut feed = |event| {
            apply(event, &mut objects, &mut whole);
            (whole, objects.keys().cloned().collect::<Vec<_>>().join(","))
        };
        assert_eq!(feed(watcher::Event::Init), (false, String::new()));
        assert_eq!(feed(watcher::Event::InitApply(node("a"))), (false, "a".into()));
        assert_eq!(feed(watcher::Event::InitDone), (true, "a".into()));
        assert_eq!(feed(watcher::Event::Apply(node("b"))), (true, "a,b".into()));
        assert_eq!(feed(watcher::Event::Delete(node("a"))), (true, "b".into()));
        assert_eq!(feed(watcher::Event::Init), (false, String::new()));
    }
}
