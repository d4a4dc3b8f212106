//! The page of all metrics: families of `/metrics` and its neighbours from their definitions, those of `/metrics/resource` from its
//! tables, those of `/metrics/cadvisor` from the text that its test expects.

use std::collections::BTreeMap;

use super::{code, head, opening, row, text_of, tokens_of};
use crate::Finding;
use crate::tokens::{Token, closing, parts};
use crate::tree::SourceFile;

/// What the paths of all files with families begin with.
const FAMILIES_BEGIN: &str = "agent/kubelet-api/src/metrics/families";
const FAMILIES: [(&str, &str); 5] = [
    ("agent/kubelet-api/src/metrics/families.rs", "The node, pods and volumes"),
    ("agent/kubelet-api/src/metrics/families/runtime.rs", "The container runtime"),
    ("agent/kubelet-api/src/metrics/families/resources.rs", "Processors, memory, devices and claims"),
    ("agent/kubelet-api/src/metrics/families/process.rs", "The agent itself, probes and health checks"),
    ("agent/kubelet-api/src/metrics/families/updates.rs", "Updates of the node; upstream has none of these"),
];
/// A file has so many families at least.
const FAMILIES_MIN: usize = 4;
const RESOURCE: &str = "agent/kubelet-api/src/stats/resource.rs";
const SERIES: &str = "agent/kubelet-api/src/stats/cadvisor/series.rs";
const PAIRS: &str = "agent/kubelet-api/src/stats/cadvisor/mod.rs";
const CADVISOR: &str = "agent/kubelet-api/src/stats/cadvisor/golden.txt";
const ABOUT: &str = "What the node's HTTPS API on port 10250 shows to Prometheus. [node-metrics.md](node-metrics.md) says where a number \
means something else than upstream's, and which families are missing; [stats.md](stats.md) has the same for containers. \
`/metrics/node`, the operating system under node_exporter's names, is [on that page](node-metrics.md#the-operating-system), too. \
[How to scrape them](../howto/metrics.md).";

/// A family: name, type, labels, help.
struct MetricFamily {
    name: String,
    kind: String,
    labels: Vec<String>,
    help: String,
}

impl MetricFamily {
    fn row(&self) -> String {
        let labels: Vec<String> = self.labels.iter().map(|label| code(label)).collect();
        let labels = if labels.is_empty() { code("") } else { labels.join(", ") };
        row([&code(&self.name), &self.kind, &labels, &self.help])
    }
}

const TITLES: [&str; 4] = ["name", "type", "labels", "help"];

pub(super) fn page(files: &[SourceFile]) -> Result<String, Finding> {
    let mut families = files.iter().filter(|file| file.is_rust() && file.path.starts_with(FAMILIES_BEGIN));
    if let Some(file) = families.find(|file| FAMILIES.iter().all(|(path, _)| *path != file.path)) {
        let message =
            "is not on the page of metrics: add it to FAMILIES of agent/tidy/src/reference/metrics.rs";
        return Err(Finding::new(&file.path, 0, message));
    }
    let sources = "`agent/kubelet-api/src/metrics` and `agent/kubelet-api/src/stats`";
    let mut page = opening("Metrics", sources, ABOUT);
    page.push_str("\n## `/metrics`, `/metrics/probes`, `/metrics/slis`\n");
    for (path, title) in FAMILIES {
        let families = definitions(&tokens_of(files, path)?);
        if families.len() < FAMILIES_MIN {
            return Err(Finding::new(path, 0, "has few metric families: mend the maker of their page"));
        }
        page.push_str(&format!("\n### {title}\n\n{}", head(TITLES)));
        families.iter().for_each(|family| page.push_str(&family.row()));
    }
    let figures = figures(&tokens_of(files, RESOURCE)?);
    if figures.len() < 10 {
        return Err(Finding::new(RESOURCE, 0, "has few metrics: mend the maker of their page"));
    }
    page.push_str("\n## `/metrics/resource`\n\nLabels are `container`, `namespace` and `pod` for containers, `namespace` and `pod` \
                   for pods.\n\n");
    page.push_str(&head(["name", "type", "help"]));
    for MetricFamily { name, kind, help, .. } in figures {
        page.push_str(&row([&code(&name), &kind, &help]));
    }
    page.push_str("\n## `/metrics/cadvisor`\n\n");
    page.push_str(&head(TITLES));
    let known = definitions(&tokens_of(files, SERIES)?);
    let known: BTreeMap<&str, &MetricFamily> = known.iter().map(|f| (f.name.as_str(), f)).collect();
    let mut helps = pairs(&tokens_of(files, PAIRS)?);
    helps.extend(pairs(&tokens_of(files, SERIES)?));
    for mut family in samples(text_of(files, CADVISOR)?) {
        if let Some(known) = known.get(family.name.as_str()) {
            (family.kind, family.help) = (known.kind.clone(), known.help.clone());
        } else if let Some(help) = helps.get(&family.name) {
            family.help.clone_from(help);
        }
        page.push_str(&family.row());
    }
    Ok(page)
}

/// `counter("name", ["label"], "help")` and its likes: the first text is the name, the last one the help, a list of texts the labels.
fn definitions(all: &[Token]) -> Vec<MetricFamily> {
    let mut found = Vec::new();
    for at in 0..all.len() {
        let [Token::Word(kind), Token::Mark('('), Token::Text(name), ..] = &all[at..] else { continue };
        if !matches!(kind.as_str(), "counter" | "gauge" | "histogram") {
            continue;
        }
        let arguments = parts(&all[at + 2..closing(all, at + 1)]);
        let labels = arguments.iter().find(|part| part.first().is_some_and(|token| token.is_mark('[')));
        let labels = labels.into_iter().flat_map(|part| part.iter()).filter_map(Token::text);
        let help = arguments.iter().skip(1).rev().find_map(|part| match part {
            [Token::Text(help)] => Some(help.clone()),
            _ => None,
        });
        found.push(MetricFamily {
            name: name.clone(),
            kind: kind.clone(),
            labels: labels.map(str::to_owned).collect(),
            help: help.unwrap_or_else(|| code("")),
        });
    }
    found
}

/// `("name", Kind::Gauge, "help")`; a help that is a variable is the last text before it.
fn figures(all: &[Token]) -> Vec<MetricFamily> {
    let mut found = Vec::new();
    let mut last = String::new();
    for at in 0..all.len() {
        if let Token::Text(text) = &all[at] {
            last.clone_from(text);
        }
        let [Token::Mark('('), Token::Text(name), Token::Mark(','), Token::Word(word), rest @ ..] =
            &all[at..]
        else {
            continue;
        };
        let [Token::Mark(':'), Token::Mark(':'), Token::Word(kind), Token::Mark(','), help, ..] = rest else {
            continue;
        };
        if word == "Kind" {
            let help = help.text().unwrap_or(&last).to_owned();
            found.push(MetricFamily {
                name: name.clone(),
                kind: kind.to_lowercase(),
                labels: Vec::new(),
                help,
            });
        }
    }
    found
}

/// `("name", "help"`: of metrics whose names are put together the name is only its end.
fn pairs(all: &[Token]) -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    for at in 0..all.len() {
        if let [Token::Mark('('), Token::Text(name), Token::Mark(','), Token::Text(help), ..] = &all[at..] {
            found.insert(name.clone(), help.clone());
            found.insert(format!("container_fs_{name}"), help.clone());
        }
    }
    found
}

/// The families of an exposition, each once, with the labels of its first sample.
fn samples(text: &str) -> Vec<MetricFamily> {
    let mut found: Vec<MetricFamily> = Vec::new();
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        let end = line.find(['{', ' ']).unwrap_or(line.len());
        let (name, rest) = line.split_at(end);
        if name.is_empty() || found.iter().any(|family| family.name == name) {
            continue;
        }
        // No value of the expected text has a comma or an equals sign inside.
        let inside =
            rest.strip_prefix('{').and_then(|rest| rest.split_once('}')).map_or("", |(inside, _)| inside);
        let labels = inside.split(',').filter_map(|pair| Some(pair.split_once('=')?.0.to_owned()));
        found.push(MetricFamily {
            name: name.to_owned(),
            kind: code(""),
            labels: labels.collect(),
            help: code(""),
        });
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tokens::tokens;

    fn rows(families: &[MetricFamily]) -> Vec<String> {
        families.iter().map(MetricFamily::row).collect()
    }

    #[test]
    fn definitions_have_name_labels_and_help() {
        let text = "const fn counter(name: &str) {} /// Of it.\npub static A: Counter<1> = counter(\"a_total\", [\"x\", \"y\"], \"A, b.\",);\n\
                    static B: Histogram<0> = histogram(\"b\", [], COMMON, \"B.\"); gauge(\"c\", \"C.\", |u| u.x);";
        assert_eq!(
            rows(&definitions(&tokens(text))),
            [
                "| `a_total` | counter | `x`, `y` | A, b. |\n",
                "| `b` | histogram | – | B. |\n",
                "| `c` | gauge | – | C. |\n"
            ]
        );
    }

    #[test]
    fn a_file_of_families_that_the_page_does_not_have_is_found() {
        let new = format!("{FAMILIES_BEGIN}/new.rs");
        assert_eq!(page(&[SourceFile::of(&new, "")]).unwrap_err().file, new);
        assert_eq!(page(&[SourceFile::of(FAMILIES[1].0, "")]).unwrap_err().file, FAMILIES[0].0);
    }

    #[test]
    fn figures_and_samples() {
        let text = "[(\"a\", Kind::Counter, \"A.\", f)]; let help = \"B.\"; out.family((\"b\", Kind::Gauge, help), x);";
        let expected = ["| `a` | counter | – | A. |\n", "| `b` | gauge | – | B. |\n"];
        assert_eq!(rows(&figures(&tokens(text))), expected);
        let helps = pairs(&tokens("[(\"a\", \"A.\", f), (\"b\", x)]"));
        assert_eq!(helps.get("container_fs_a").map(String::as_str), Some("A."));
        assert!(helps.len() == 2 && helps.contains_key("a"), "{helps:?}");
        let text = "# HELP a\na{x=\"1\",y=\"\"} 4 700\na{x=\"2\"} 1\nb 0\n";
        assert_eq!(rows(&samples(text)), ["| `a` | – | `x`, `y` | – |\n", "| `b` | – | – | – |\n"]);
    }
}
