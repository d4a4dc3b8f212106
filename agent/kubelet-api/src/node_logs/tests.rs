//! Queries: the texts of refusals, and the arguments of journalctl.

use super::*;

fn parsed(query: &str) -> Result<Option<NodeLogQuery>, QueryError> {
    let pairs = query.split('&').filter(|p| !p.is_empty()).map(|p| p.split_once('=').unwrap_or((p, "")));
    NodeLogQuery::from_query(pairs)
}

fn accepted(query: &str) -> Result<NodeLogs, QueryError> {
    let missing = |file: &str| (file != "a/b.log" && file != r"a\b.log").then(|| format!("no {file}"));
    parsed(query)?.expect("a query").accepted(missing)
}

fn services(query: &str) -> ServiceQuery {
    match accepted(query) {
        Ok(NodeLogs::Services(services)) => services,
        other => panic!("{query}: {other:?}"),
    }
}

#[test]
fn without_any_of_our_keys_it_is_no_query() {
    for query in ["", "other=1", "tailLines=&pattern="] {
        assert_eq!(parsed(query), Ok(None), "{query}");
    }
}

#[test]
fn what_cannot_be_read_is_said_in_the_words_of_field_errors() {
    for (query, words) in [
        ("query=", r#"query: Invalid value: [""]: may not be empty"#),
        ("query=   &query=", r#"query: Invalid value: ["   ",""]: may not be empty"#),
        ("query=a&sinceTime=noon", r#"sinceTime: Invalid value: "noon": invalid time format"#),
        ("query=a&untilTime=1", r#"untilTime: Invalid value: "1": invalid time format"#),
        ("query=a&boot=x", r#"boot: Invalid value: "x": strconv.Atoi: parsing "x": invalid syntax"#),
        (
            "query=a&tailLines=1.5&boot=-",
            r#"[boot: Invalid value: "-": strconv.Atoi: parsing "-": invalid syntax, tailLines: Invalid value: "1.5": strconv.Atoi: parsing "1.5": invalid syntax]"#,
        ),
    ] {
        assert_eq!(parsed(query), Err(QueryError::Unreadable(words.to_owned())), "{query}");
    }
}

#[test]
fn what_makes_no_sense_is_said_in_the_words_of_field_errors() {
    let long = "a".repeat(257);
    for (query, words) in [
        ("tailLines=3", "query: Required value: cannot be empty with options".to_owned()),
        ("query=a b", r#"query: Invalid value: "a b": input contains unsupported characters"#.to_owned()),
        (
            "query=--file=x",
            r#"query: Invalid value: "--file=x": input contains unsupported characters"#.to_owned(),
        ),
        (
            &format!("query={long}"),
            format!(r#"query: Invalid value: "{long}": length must be less than 256"#),
        ),
        (
            "query=a&query=b&query=c&query=d&query=e",
            "query: Too many: 5: must have at most 4 items".to_owned(),
        ),
        (
            "query=a/b.log&query=s",
            r#"query: Invalid value: "[a/b.log], [s]": cannot specify a file and service"#.to_owned(),
        ),
        (
            "query=a/b.log&query=/c",
            r#"query: Invalid value: ["a/b.log","/c"]: cannot specify more than one file"#.to_owned(),
        ),
        (
            "query=a/b.log&tailLines=1",
            r#"query: Invalid value: ["a/b.log"]: cannot specify file with options"#.to_owned(),
        ),
        ("query=/etc/x", r#"query: Invalid value: ["/etc/x"]: no /etc/x"#.to_owned()),
        (
            "query=s&sinceTime=2026-01-02T00:00:00Z&untilTime=2026-01-01T00:00:00Z",
            r#"untilTime: Invalid value: "2026-01-01T00:00:00Z": must be after `sinceTime`"#.to_owned(),
        ),
        ("query=s&boot=1", "boot: Invalid value: 1: must be less than 1".to_owned()),
        (
            "query=s&tailLines=100001",
            "tailLines: Invalid value: 100001: must be between 0 and 100000, inclusive".to_owned(),
        ),
        (
            "query=s&tailLines=-1",
            "tailLines: Invalid value: -1: must be between 0 and 100000, inclusive".to_owned(),
        ),
    ] {
        assert_eq!(accepted(query), Err(QueryError::Unacceptable(words)), "{query}");
    }
    let Err(QueryError::Unacceptable(words)) = accepted("query=s&pattern=[") else {
        panic!("a pattern that is none")
    };
    assert!(words.starts_with(r#"pattern: Invalid value: "[": error parsing regexp: "#), "{words}");
}

#[test]
fn a_file_is_a_path() {
    for query in ["query=a/b.log", r"query=a\b.log"] {
        assert_eq!(accepted(query), Ok(NodeLogs::File("a/b.log".to_owned())), "{query}");
    }
}

#[test]
fn units_of_the_journal_and_files_are_told_apart_by_whole_names() {
    let units = "init.scope\ncontainerd.service\nkubelet.service\n";
    let split = |query: &str| services(query).split(units);
    let owned = |names: &[&str]| names.iter().map(|n| (*n).to_owned()).collect::<Vec<_>>();
    assert_eq!(
        split("query=containerd&query=cron&query=kube"),
        (owned(&["containerd"]), owned(&["cron", "kube"]))
    );
    assert_eq!(split("query=kubelet"), (owned(&["kubelet"]), Vec::new()));
    assert_eq!(services("query=kubelet").split(""), (Vec::new(), owned(&["kubelet"])), "no journal");
}

#[test]
fn each_option_is_one_argument_and_times_are_utc() {
    let text = "query=a&query=b&sinceTime=2026-01-02T03:04:05+01:00&untilTime=2026-01-03T00:00:00Z&tailLines=7\
                &pattern=x --file=/etc/shadow&boot=-1";
    let query = services(text);
    let (journal, files) = query.split("a.service\nb.service\n");
    assert_eq!(files, Vec::<String>::new());
    assert_eq!(
        query.journal_arguments(&journal),
        [
            "--utc",
            "--no-pager",
            "--output=short-precise",
            "--since=2026-01-02 02:04:05 UTC",
            "--until=2026-01-03 00:00:00 UTC",
            "--pager-end",
            "--lines=7",
            "--unit=a",
            "--unit=b",
            "--grep=x --file=/etc/shadow",
            "--boot=-1",
        ]
    );
}

#[test]
fn options_choose_in_the_journal_only() {
    let files = ["cron".to_owned(), "ntp".to_owned()];
    assert_eq!(services("query=cron").refuses_files(&files), None);
    assert_eq!(services("query=cron&boot=0").refuses_files(&[]), None);
    assert_eq!(
        services("query=cron&boot=0").refuses_files(&files).as_deref(),
        Some(
            "\noptions present and query resolved to log files for [cron ntp]\ntry without specifying options\n"
        )
    );
    assert_eq!(files_of("cron"), ["cron", "cron.log", "cron/cron.log"]);
}

#[test]
fn a_page_of_links_is_no_way_to_write_html() {
    let names = ["pods/", "a<b>&\"c'.log", "x:y", "100 %"].map(str::to_owned);
    let page = directory_page(&names);
    let lines: Vec<&str> = page.lines().skip(3).collect();
    assert_eq!(
        lines,
        [
            r#"<a href="pods/">pods/</a>"#,
            r#"<a href="a%3Cb%3E&amp;%22c%27.log">a&lt;b&gt;&amp;&#34;c&#39;.log</a>"#,
            r#"<a href="./x:y">x:y</a>"#,
            r#"<a href="100%20%25">100 %</a>"#,
            "</pre>",
        ]
    );
}
