//! node_logs: queries for the logs of the node itself, `/logs/?query=…` (node log query, KEP-2258).
//!
//! In: decoded pairs of a query. Out: [`NodeLogQuery`], the arguments of journalctl, the candidates for a
//! service's log file, or the errors in the words of the API's field errors. Invariants: pure; the arguments
//! of journalctl contain checked values only, so no value can become another option. Upstream:
//! pkg/kubelet/kubelet_server_journal.go.

use std::fmt::Write as _;
use std::str::FromStr;

use jiff::Timestamp;
use serde_json::json;

/// Most lines of a journal in one query.
const TAIL_MAX: i64 = 100_000;
/// Most services in one query.
const SERVICES_MAX: usize = 4;
/// Bytes of a service's name.
const SERVICE_LENGTH_MAX: usize = 256;

/// Options of a request for the node's logs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeLogQuery {
    services: Vec<String>,
    files: Vec<String>,
    options: Options,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Options {
    since: Option<Timestamp>,
    until: Option<Timestamp>,
    tail: Option<i64>,
    boot: Option<i64>,
    pattern: String,
}

/// What a query that makes sense leads to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NodeLogs {
    /// Services: of the journal, or files of their names.
    Services(ServiceQuery),
    /// A file below the node's log directory.
    File(String),
}

/// A query for logs of services.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServiceQuery {
    services: Vec<String>,
    options: Options,
}

/// A query that cannot be answered.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum QueryError {
    /// Values that cannot be read: 400.
    #[error("{0}")]
    Unreadable(String),
    /// Values that make no sense, alone or together: 406.
    #[error("{0}")]
    Unacceptable(String),
}

impl NodeLogQuery {
    /// Reads decoded pairs of a query; unknown keys are ignored, and the first value of a repeated key counts
    /// (`query` may be repeated). `None` without any known key: the request is for a file by its path.
    ///
    /// # Errors
    /// [`QueryError::Unreadable`].
    pub fn from_query<'a>(
        pairs: impl IntoIterator<Item = (&'a str, &'a str)>,
    ) -> Result<Option<NodeLogQuery>, QueryError> {
        let (mut query, mut errors) = (NodeLogQuery::default(), Vec::new());
        let (mut asked, mut seen) = (Vec::new(), Vec::new());
        for (key, value) in pairs {
            if key == "query" {
                asked.push(value);
            } else if !seen.iter().any(|(known, _)| *known == key) {
                seen.push((key, value));
            }
        }
        for value in &asked {
            if value.contains(['/', '\\']) {
                query.files.push((*value).to_owned());
            } else if !value.trim().is_empty() {
                query.services.push((*value).to_owned());
            }
        }
        if !asked.is_empty() && query.files.is_empty() && query.services.is_empty() {
            errors.push(format!("query: Invalid value: {}: may not be empty", json!(asked)));
        }
        let value = |name: &str| {
            let found = seen.iter().find(|(key, value)| *key == name && !value.is_empty());
            found.map(|(_, value)| *value)
        };
        let options = &mut query.options;
        options.since = time("sinceTime", value("sinceTime"), &mut errors);
        options.until = time("untilTime", value("untilTime"), &mut errors);
        options.boot = number("boot", value("boot"), &mut errors);
        options.tail = number("tailLines", value("tailLines"), &mut errors);
        value("pattern").unwrap_or_default().clone_into(&mut options.pattern);
        match together(errors) {
            Some(words) => Err(QueryError::Unreadable(words)),
            None => Ok((query != NodeLogQuery::default()).then_some(query)),
        }
    }

    /// The requested file, if the query names one file alone: the caller checks whether it exists.
    #[must_use]
    pub fn only_file(&self) -> Option<&str> {
        match (self.files.as_slice(), self.services.is_empty()) {
            ([file], true) => Some(file),
            _ => None,
        }
    }

    /// The logs to read. `missing` returns the error for a file of that name, if there is one.
    ///
    /// # Errors
    /// [`QueryError::Unacceptable`].
    pub fn accepted(self, missing: impl Fn(&str) -> Option<String>) -> Result<NodeLogs, QueryError> {
        let NodeLogQuery { services, files, options } = self;
        let mut errors = bad_services(&services);
        match (files.as_slice(), services.is_empty()) {
            ([], true) => errors.push("query: Required value: cannot be empty with options".to_owned()),
            ([], false) => {}
            (files, false) => {
                let shown = format!("[{}], [{}]", files.join(" "), services.join(" "));
                errors.push(format!(
                    "query: Invalid value: {}: cannot specify a file and service",
                    json!(shown)
                ));
            }
            ([file], true) => {
                let wrong = if options == Options::default() {
                    missing(file)
                } else {
                    Some("cannot specify file with options".to_owned())
                };
                errors.extend(wrong.map(|wrong| format!("query: Invalid value: {}: {wrong}", json!(files))));
            }
            (files, true) => errors
                .push(format!("query: Invalid value: {}: cannot specify more than one file", json!(files))),
        }
        errors.extend(options.errors());
        match (together(errors), files.into_iter().next()) {
            (Some(words), _) => Err(QueryError::Unacceptable(words)),
            (None, Some(file)) => Ok(NodeLogs::File(file.replace('\\', "/"))),
            (None, None) => Ok(NodeLogs::Services(ServiceQuery { services, options })),
        }
    }
}

impl Options {
    fn errors(&self) -> Vec<String> {
        let mut errors = Vec::new();
        if let (Some(since), Some(until)) = (self.since, self.until)
            && since > until
        {
            errors.push(format!(
                "untilTime: Invalid value: {}: must be after `sinceTime`",
                json!(until.to_string())
            ));
        }
        if let Some(boot) = self.boot.filter(|boot| *boot > 0) {
            errors.push(format!("boot: Invalid value: {boot}: must be less than 1"));
        }
        if let Some(tail) = self.tail.filter(|tail| !(0..=TAIL_MAX).contains(tail)) {
            errors.push(format!(
                "tailLines: Invalid value: {tail}: must be between 0 and {TAIL_MAX}, inclusive"
            ));
        }
        if let Err(error) = regex_syntax::parse(&self.pattern) {
            let pattern = json!(self.pattern);
            errors.push(format!(
                "pattern: Invalid value: {pattern}: error parsing regexp: {}",
                one_line(&error)
            ));
        }
        errors
    }
}

impl ServiceQuery {
    /// Splits the services into those that write to the journal, by its list of units (`journalctl --field
    /// _SYSTEMD_UNIT`), and those that may have files.
    #[must_use]
    pub fn split(&self, units: &str) -> (Vec<String>, Vec<String>) {
        let known = |name: &str| units.lines().any(|unit| unit == format!("{name}.service"));
        self.services.iter().cloned().partition(|service| known(service))
    }

    /// journalctl's arguments for services that write to the journal. Times are in UTC and marked so.
    #[must_use]
    pub fn journal_arguments(&self, services: &[String]) -> Vec<String> {
        let mut arguments = ["--utc", "--no-pager", "--output=short-precise"].map(str::to_owned).to_vec();
        let Options { since, until, tail, boot, pattern } = &self.options;
        let when = |time: &Timestamp| time.strftime("%Y-%m-%d %H:%M:%S UTC").to_string();
        arguments.extend(since.iter().map(|time| format!("--since={}", when(time))));
        arguments.extend(until.iter().map(|time| format!("--until={}", when(time))));
        if let Some(tail) = tail {
            arguments.extend(["--pager-end".to_owned(), format!("--lines={tail}")]);
        }
        arguments.extend(services.iter().map(|service| format!("--unit={service}")));
        if !pattern.is_empty() {
            arguments.push(format!("--grep={pattern}"));
        }
        arguments.extend(boot.iter().map(|boot| format!("--boot={boot}")));
        arguments
    }

    /// Text instead of the files of services that do not write to the journal, if the options exclude files:
    /// options apply to the journal's entries only.
    #[must_use]
    pub fn refuses_files(&self, services: &[String]) -> Option<String> {
        (!services.is_empty() && self.options != Options::default()).then(|| {
            let services = services.join(" ");
            format!(
                "\noptions present and query resolved to log files for [{services}]\ntry without specifying options\n"
            )
        })
    }
}

/// Where a service that does not write to the journal may have its log, in order, below the node's log directory.
#[must_use]
pub fn files_of(service: &str) -> [String; 3] {
    [service.to_owned(), format!("{service}.log"), format!("{service}/{service}.log")]
}

/// A directory as a page of links, as Go's file server shows it; names of directories end in a slash.
#[must_use]
pub fn directory_page(names: &[String]) -> String {
    let mut page =
        "<!doctype html>\n<meta name=\"viewport\" content=\"width=device-width\">\n<pre>\n".to_owned();
    for name in names {
        // Writing to a string cannot fail.
        let _ = writeln!(page, "<a href=\"{}\">{}</a>", link(name), escaped(name));
    }
    page.push_str("</pre>\n");
    page
}

/// A relative URL; a name that would look like a scheme begins with `./`.
fn link(name: &str) -> String {
    let mut url = String::new();
    if name.split('/').next().is_some_and(|first| first.contains(':')) {
        url.push_str("./");
    }
    for byte in name.bytes() {
        if byte.is_ascii_alphanumeric() || b"-_.~$&+,/:;=@".contains(&byte) {
            url.push(char::from(byte));
        } else {
            let _ = write!(url, "%{byte:02X}");
        }
    }
    escaped(&url)
}

fn escaped(text: &str) -> String {
    let text = text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
    text.replace('"', "&#34;").replace('\'', "&#39;")
}

fn bad_services(services: &[String]) -> Vec<String> {
    let mut errors = Vec::new();
    for service in services {
        let safe = |c: char| c.is_ascii_alphanumeric() || "-_.:@".contains(c);
        let wrong = if service.len() > SERVICE_LENGTH_MAX {
            format!("length must be less than {SERVICE_LENGTH_MAX}")
        } else if !service.chars().all(safe) {
            "input contains unsupported characters".to_owned()
        } else {
            continue;
        };
        errors.push(format!("query: Invalid value: {}: {wrong}", json!(service)));
    }
    if services.len() > SERVICES_MAX {
        let count = services.len();
        errors.push(format!("query: Too many: {count}: must have at most {SERVICES_MAX} items"));
    }
    errors
}

fn time(key: &str, value: Option<&str>, errors: &mut Vec<String>) -> Option<Timestamp> {
    let value = value?;
    let time = Timestamp::from_str(value).ok();
    if time.is_none() {
        errors.push(format!("{key}: Invalid value: {}: invalid time format", json!(value)));
    }
    time
}

fn number(key: &str, value: Option<&str>, errors: &mut Vec<String>) -> Option<i64> {
    let value = value?;
    let number = i64::from_str(value).ok();
    if number.is_none() {
        let value = json!(value);
        errors.push(format!("{key}: Invalid value: {value}: strconv.Atoi: parsing {value}: invalid syntax"));
    }
    number
}

/// The last line of the parser's message: the lines before it only draw the position.
fn one_line(error: &regex_syntax::Error) -> String {
    let text = error.to_string();
    let last = text.lines().next_back().unwrap_or_default();
    last.trim_start_matches("error: ").to_owned()
}

/// Errors as upstream aggregates them.
fn together(errors: Vec<String>) -> Option<String> {
    match errors.as_slice() {
        [] => None,
        [one] => Some(one.clone()),
        many => Some(format!("[{}]", many.join(", "))),
    }
}

#[cfg(test)]
mod tests;
