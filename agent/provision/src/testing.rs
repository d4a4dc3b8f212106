//! A fake of every platform's metadata service and of Azure's wire server, over TCP; tests only.
//!
//! In: a platform, its user data, and faults for the next requests. Out: answers as the platform gives them, and a record of what
//! was asked. Written against the platforms' documentation and not against the client: a request without the platform's headers is
//! refused as there.

use orlop_config::platform::PlatformName;
use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

/// Largest head and largest body of a request, bytes.
const REQUEST_BYTES_MAX: usize = 64 << 10;
/// A client that says nothing is left after this time.
const PATIENCE: Duration = Duration::from_secs(60);
/// The token that AWS' service gives.
const TOKEN: &str = "fake-token==";

/// What goes wrong with one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetadataFault {
    /// No answer, until the client gives up.
    Silent,
    /// The answer, so much later; less than a client's patience.
    Slow(Duration),
    /// Half of the answer.
    Cut,
    /// A body of 2 MiB.
    TooLarge,
    /// This status, with a body.
    Status(u16),
    /// 302 to another host.
    Redirect,
}

/// The service's side.
#[derive(Debug)]
pub struct FakeMetadata {
    platform: PlatformName,
    user_data: Mutex<Option<Vec<u8>>>,
    faults: Mutex<VecDeque<MetadataFault>>,
    asked: Mutex<Vec<String>>,
    ended: AtomicBool,
}

/// Another thread's panic has failed the test already.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl FakeMetadata {
    /// A service with user data as the operator gave them to the platform; `None`: without any.
    #[must_use]
    pub fn new(platform: PlatformName, user_data: Option<&str>) -> FakeMetadata {
        FakeMetadata {
            platform,
            user_data: Mutex::new(user_data.map(|text| text.as_bytes().to_vec())),
            faults: Mutex::default(),
            asked: Mutex::default(),
            ended: AtomicBool::new(false),
        }
    }

    /// The next requests go wrong, one by each fault.
    pub fn fail(&self, faults: impl IntoIterator<Item = MetadataFault>) {
        lock(&self.faults).extend(faults);
    }

    /// The operator gives others.
    pub fn set_user_data(&self, user_data: &[u8]) {
        *lock(&self.user_data) = Some(user_data.to_vec());
    }

    /// Method and path of all requests so far.
    #[must_use]
    pub fn asked(&self) -> Vec<String> {
        lock(&self.asked).clone()
    }

    /// Serves one connection after the other until [`FakeMetadata::end`], or until the listener fails.
    pub fn serve(&self, listener: &TcpListener) {
        for stream in listener.incoming() {
            let Ok(stream) = stream else { return };
            if self.ended.load(Ordering::Relaxed) {
                return;
            }
            // A client that breaks off concerns itself alone.
            let _ = self.connection(stream);
        }
    }

    /// The connection after this call is the last.
    pub fn end(&self) {
        self.ended.store(true, Ordering::Relaxed);
    }

    fn connection(&self, mut stream: TcpStream) -> io::Result<()> {
        stream.set_read_timeout(Some(PATIENCE))?;
        let Some(request) = FakeRequest::read(&mut stream)? else { return Ok(()) };
        lock(&self.asked).push(format!("{} {}", request.method, request.target));
        let fault = lock(&self.faults).pop_front();
        let (status, body) = match fault {
            None => self.answer(&request),
            Some(MetadataFault::Slow(pause)) => {
                // The client says nothing more, so this read lasts as long as it may.
                stream.set_read_timeout(Some(pause))?;
                let _ = stream.read(&mut [0]);
                self.answer(&request)
            }
            Some(MetadataFault::Status(status)) => (status, b"a fault".to_vec()),
            Some(MetadataFault::TooLarge) => (200, vec![b'#'; 2 << 20]),
            Some(MetadataFault::Redirect) => (302, Vec::new()),
            Some(MetadataFault::Silent) => {
                let _ = stream.read(&mut [0]);
                return Ok(());
            }
            Some(MetadataFault::Cut) => (200, b"half of an answer".to_vec()),
        };
        let location = if status == 302 { "Location: http://127.0.0.1:1/elsewhere\r\n" } else { "" };
        let head = format!(
            "HTTP/1.1 {status} Answer\r\nContent-Length: {}\r\nContent-Type: text/plain\r\n{location}Connection: close\r\n\r\n",
            body.len()
        );
        let sent = if fault == Some(MetadataFault::Cut) { body.len() / 2 } else { body.len() };
        stream.write_all(head.as_bytes())?;
        stream.write_all(&body[..sent])
    }

    fn answer(&self, request: &FakeRequest) -> (u16, Vec<u8>) {
        if let Some(refusal) = self.refusal(request) {
            return (refusal, b"refused".to_vec());
        }
        if request.target == user_data_path(self.platform) {
            let user_data = lock(&self.user_data).clone();
            let encoded = matches!(self.platform, PlatformName::Azure | PlatformName::Oracle);
            return match user_data {
                None => (404, b"not found".to_vec()),
                Some(bytes) if encoded => (200, base64(&bytes).into_bytes()),
                Some(bytes) => (200, bytes),
            };
        }
        let known = facts(self.platform).iter().find(|(path, _)| *path == request.target);
        known.map_or((404, b"not found".to_vec()), |(_, text)| (200, text.as_bytes().to_vec()))
    }

    /// The status for a request that lacks what the platform requires of it.
    fn refusal(&self, request: &FakeRequest) -> Option<u16> {
        let says = |name: &str, value: &str| request.header(name).is_some_and(|have| have == value);
        let wire = request.target.starts_with("/machine?");
        let fine = match self.platform {
            PlatformName::Aws if request.target == "/latest/api/token" => {
                let ttl = request.header("x-aws-ec2-metadata-token-ttl-seconds");
                let ttl = ttl.and_then(|ttl| ttl.parse::<u32>().ok());
                if request.method != "PUT" {
                    return Some(405);
                }
                if !ttl.is_some_and(|ttl| (1..=21_600).contains(&ttl)) {
                    return Some(400);
                }
                true
            }
            PlatformName::Aws => says("x-aws-ec2-metadata-token", TOKEN),
            PlatformName::Gce => {
                says("metadata-flavor", "Google") && says("host", "metadata.google.internal")
            }
            PlatformName::Azure if wire => says("x-ms-version", "2012-11-30"),
            PlatformName::Azure => says("metadata", "true"),
            PlatformName::Oracle => says("authorization", "Bearer Oracle"),
            _ => true,
        };
        let ready = "<State>Ready</State>";
        let ids = ["<GoalStateIncarnation>1<", "<ContainerId>c-1<", "<InstanceId>i-1<", ready];
        if request.target == "/machine?comp=health" && !ids.iter().all(|id| request.body.contains(id)) {
            return Some(400);
        }
        (!fine).then_some(401)
    }
}

/// A request as it arrived.
struct FakeRequest {
    method: String,
    target: String,
    headers: Vec<(String, String)>,
    body: String,
}

impl FakeRequest {
    /// `None` if the connection ends before there is one.
    fn read(stream: &mut TcpStream) -> io::Result<Option<FakeRequest>> {
        let (mut bytes, mut part) = (Vec::new(), [0; 4096]);
        loop {
            if let Some(request) = FakeRequest::parse(&bytes) {
                return Ok(Some(request));
            }
            match stream.read(&mut part)? {
                0 => return Ok(None),
                _ if bytes.len() > REQUEST_BYTES_MAX => return Ok(None),
                n => bytes.extend_from_slice(&part[..n]),
            }
        }
    }

    /// `None` if it is not whole yet.
    fn parse(bytes: &[u8]) -> Option<FakeRequest> {
        let text = String::from_utf8_lossy(bytes).into_owned();
        let (head, body) = text.split_once("\r\n\r\n")?;
        let mut lines = head.lines();
        let mut words = lines.next()?.split(' ');
        let (method, target) = (words.next()?.to_owned(), words.next()?.to_owned());
        let header = |line: &str| {
            let (name, value) = line.split_once(':')?;
            Some((name.trim().to_ascii_lowercase(), value.trim().to_owned()))
        };
        let headers: Vec<(String, String)> = lines.filter_map(header).collect();
        let length = headers.iter().find(|(name, _)| name == "content-length");
        let length = length.and_then(|(_, value)| value.parse().ok()).unwrap_or(0);
        let body = body.to_owned();
        (body.len() >= length).then_some(FakeRequest { method, target, headers, body })
    }

    fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(n, _)| n == name).map(|(_, value)| value.as_str())
    }
}

fn user_data_path(platform: PlatformName) -> &'static str {
    match platform {
        PlatformName::Aws | PlatformName::Vultr => "/latest/user-data",
        PlatformName::Gce => "/computeMetadata/v1/instance/attributes/user-data",
        PlatformName::Azure => "/metadata/instance/compute/userData?api-version=2021-01-01&format=text",
        PlatformName::OpenStack => "/openstack/latest/user_data",
        PlatformName::Oracle => "/opc/v2/instance/metadata/user_data",
        PlatformName::DigitalOcean => "/metadata/v1/user-data",
        PlatformName::Hetzner => "/hetzner/v1/userdata",
        PlatformName::Vmware | PlatformName::HyperV => "",
    }
}

fn facts(platform: PlatformName) -> &'static [(&'static str, &'static str)] {
    match platform {
        PlatformName::Aws => &[
            ("/latest/api/token", TOKEN),
            ("/latest/meta-data/instance-id", "i-0123456789abcdef0"),
            ("/latest/meta-data/local-hostname", "ip-10-0-0-5.eu-west-1.compute.internal"),
            ("/latest/meta-data/instance-type", "m7i.large"),
            ("/latest/meta-data/placement/availability-zone", "eu-west-1a"),
            ("/latest/meta-data/placement/region", "eu-west-1"),
            ("/latest/meta-data/local-ipv4", "10.0.0.5"),
            ("/latest/meta-data/public-ipv4", "203.0.113.7"),
        ],
        PlatformName::Gce => &[
            ("/computeMetadata/v1/instance/id", "4711"),
            ("/computeMetadata/v1/instance/name", "n1"),
            ("/computeMetadata/v1/instance/machine-type", "projects/7/machineTypes/e2-small"),
            ("/computeMetadata/v1/instance/zone", "projects/7/zones/us-central1-b"),
            ("/computeMetadata/v1/project/project-id", "p"),
            ("/computeMetadata/v1/instance/network-interfaces/0/ip", "10.0.0.5"),
        ],
        PlatformName::Azure => &[
            (
                "/metadata/instance/compute?api-version=2021-02-01&format=json",
                r#"{"osProfile": {"computerName": "n1"}, "vmId": "u-1", "vmSize": "Standard_B2s", "location": "westeurope", "zone": "2",
                    "resourceId": "/subscriptions/s/resourceGroups/g/providers/Microsoft.Compute/virtualMachines/n1"}"#,
            ),
            (
                "/metadata/instance/network/interface/0?api-version=2021-02-01&format=json",
                r#"{"ipv4": {"ipAddress": [{"privateIpAddress": "10.0.0.5", "publicIpAddress": ""}]}}"#,
            ),
            (
                "/machine?comp=goalstate",
                "<?xml version=\"1.0\"?><GoalState><Incarnation>1</Incarnation><Container><ContainerId>c-1</ContainerId>\
                 <RoleInstanceList><RoleInstance><InstanceId>i-1</InstanceId></RoleInstance></RoleInstanceList></Container></GoalState>",
            ),
            ("/machine?comp=health", ""),
        ],
        PlatformName::OpenStack => &[
            (
                "/openstack/latest/meta_data.json",
                r#"{"name": "n1", "uuid": "u-1", "availability_zone": "nova"}"#,
            ),
            ("/latest/meta-data/instance-type", "m1.small"),
            ("/latest/meta-data/local-ipv4", "10.0.0.5"),
        ],
        PlatformName::Oracle => &[
            (
                "/opc/v2/instance/",
                r#"{"hostname": "n1", "id": "ocid1.instance", "region": "iad", "canonicalRegionName": "us-ashburn-1",
                    "shape": "VM.Standard3.Flex", "availabilityDomain": "EMIr:US-ASHBURN-AD-1"}"#,
            ),
            ("/opc/v2/vnics/", r#"[{"privateIp": "10.0.0.5"}]"#),
        ],
        PlatformName::DigitalOcean => {
            &[("/metadata/v1/id", "4711"), ("/metadata/v1/hostname", "n1"), ("/metadata/v1/region", "fra1")]
        }
        PlatformName::Vultr => &[(
            "/v1.json",
            r#"{"hostname": "n1", "instance-v2-id": "4711", "region": {"regioncode": "FRA"}}"#,
        )],
        PlatformName::Hetzner => &[
            ("/hetzner/v1/metadata/instance-id", "4711"),
            ("/hetzner/v1/metadata/hostname", "n1"),
            ("/hetzner/v1/metadata/availability-zone", "fsn1-dc14"),
            ("/hetzner/v1/metadata/region", "eu-central"),
        ],
        PlatformName::Vmware | PlatformName::HyperV => &[],
    }
}

/// As the platform encodes; the client's own code is not its own proof.
fn base64(bytes: &[u8]) -> String {
    let alphabet = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut out = String::new();
    for chunk in bytes.chunks(3) {
        let mut word = [0; 4];
        word[1..=chunk.len()].copy_from_slice(chunk);
        let word = u32::from_be_bytes(word);
        for i in 0..=chunk.len() {
            out.push(char::from(alphabet[(word >> (18 - 6 * i)) as usize & 63]));
        }
        (chunk.len()..3).for_each(|_| out.push('='));
    }
    out
}

/// The fake on a port of the loopback, in a thread that ends with this value.
#[derive(Debug)]
pub struct LoopbackMetadata {
    fake: Arc<FakeMetadata>,
    address: SocketAddr,
    thread: Option<JoinHandle<()>>,
}

impl LoopbackMetadata {
    /// Starts it.
    ///
    /// # Errors
    /// There is no port.
    pub fn start(fake: FakeMetadata) -> io::Result<LoopbackMetadata> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let (fake, address) = (Arc::new(fake), listener.local_addr()?);
        let served = Arc::clone(&fake);
        let thread = std::thread::spawn(move || served.serve(&listener));
        Ok(LoopbackMetadata { fake, address, thread: Some(thread) })
    }

    /// Where it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The service.
    #[must_use]
    pub fn fake(&self) -> &FakeMetadata {
        &self.fake
    }
}

impl Drop for LoopbackMetadata {
    fn drop(&mut self) {
        self.fake.end();
        // The thread waits for a connection.
        let _ = TcpStream::connect(self.address);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
