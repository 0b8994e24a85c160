//! Words, tables and presets of links.

use super::*;

fn toml(text: &str) -> std::result::Result<Link, toml::de::Error> {
    #[derive(Deserialize)]
    struct File {
        link: Link,
    }
    toml::from_str::<File>(text).map(|file| file.link)
}

#[test]
fn presets_are_valid_and_say_their_names() {
    for (name, _, link) in presets() {
        assert_eq!(Link::parse(name).unwrap(), link);
        assert_eq!(link.to_string(), name);
    }
    assert_eq!(Link::parse("100mbit").unwrap().bandwidth, 1e8);
}

#[test]
fn words_and_tables_say_the_same() {
    let word = Link::parse("250mbit, latency=1ms,jitter=0.5ms,stragglers=0.1,slowdown=3");
    let table = toml(
        "link = { bandwidth = \"250mbit\", latency = 0.001, jitter = \"500us\", \
         stragglers = 0.1, slowdown = 3 }",
    );
    let word = word.unwrap();
    assert_eq!(word, table.unwrap());
    assert_eq!(word.to_string(), "250mbit,latency=1ms,jitter=500us,stragglers=0.1,slowdown=3");
    assert_eq!(Link::parse(&word.to_string()).unwrap(), word);
    assert_eq!(toml("link = \"wan\"").unwrap(), toml("link = { preset = \"wan\" }").unwrap());
}

#[test]
fn hosts_that_differ_have_their_own_figures() {
    let link = toml(
        "link = { preset = \"1gbit\", ranks = [{ rank = 2, bandwidth = \"10mbit\" }, \
         { rank = 0, slowdown = 2.0, latency = \"3ms\" }], server = { bandwidth = \"10gbit\" } }",
    )
    .unwrap();
    assert_eq!(link.bandwidth_of(2), 1e7);
    assert_eq!(link.bandwidth_of(0), 1e9);
    assert_eq!(link.latency_between(1, 0), 3e-3);
    assert_eq!(link.slowdown_of(1, 0, 1), 2.0);
    assert_eq!(link.server_bandwidth(), Some(1e10));
}

#[test]
fn impossible_links_are_refused_with_what_to_write() {
    for (word, part) in [
        ("", "100gbit, datacenter, wan"),
        ("fast", "such as 250mbit"),
        ("0mbit", "bandwidth = 0"),
        ("-5gbit", "at least 1 bit"),
        ("nanmbit", "bandwidth = NaN"),
        ("infgbit", "bandwidth = inf"),
        ("1e30gbit", "at most 1000 tbit"),
        ("1gbit,latency=-1ms", "latency = -0.001"),
        ("1gbit,latency=soon", "such as 1ms"),
        ("1gbit,latency", "KEY=VALUE"),
        ("1gbit,latensy=1ms", "the keys are"),
        ("1gbit,mtu=10", "256 to 65535"),
        ("1gbit,header=2000", "0 to 200"),
        ("1gbit,stragglers=2", "0 to 1"),
        ("1gbit,slowdown=0.5", "1 to 1000000"),
        ("1gbit,jitter=nan", "jitter = NaN"),
    ] {
        let error = Link::parse(word).unwrap_err().to_string();
        assert!(error.contains(part), "{word}: {error}");
    }
    for (text, part) in [
        ("link = {}", "bandwidth"),
        ("link = 5", "a link's word"),
        ("link = { bandwidht = 5 }", "unknown field"),
        ("link = { bandwidth = \"fast\" }", "100mbit"),
        ("link = { bandwidth = 1e9, ranks = [{ rank = 1 }, { rank = 1 }] }", "once"),
        ("link = { bandwidth = 1e9, ranks = [{ rank = 1, bandwidth = 0 }] }", "ranks.bandw"),
        ("link = { bandwidth = 1e9, server = { bandwidth = 0 } }", "server.bandwidth"),
    ] {
        let error = toml(text).unwrap_err().to_string();
        assert!(error.contains(part), "{text}: {error}");
    }
}

#[test]
fn lists_know_changes_from_links() {
    let list = Link::parse_list("100mbit,latency=1ms,jitter=1us, 1gbit,wan").unwrap();
    let words: Vec<&str> = list.iter().map(|(word, _)| word.as_str()).collect();
    assert_eq!(words, ["100mbit,latency=1ms,jitter=1us", "1gbit", "wan"]);
    assert!(Link::parse_list("latency=1ms,1gbit").is_err());
    assert!(Link::parse_list("1gbit,,wan").is_err());
}

#[test]
fn packets_carry_headers() {
    let link = Link::with_bandwidth(1e9);
    assert_eq!(link.wire_bytes(0), 0.0);
    assert_eq!(link.wire_bytes(1), 91.0);
    assert_eq!(link.wire_bytes(1448), 1538.0);
    assert_eq!(link.wire_bytes(1449), 1449.0 + 180.0);
}

#[test]
fn draws_have_their_mean_and_probability_and_repeat() {
    let link = Link::parse("1gbit,jitter=1ms,stragglers=0.25,slowdown=4").unwrap();
    let n = 20_000;
    let mean = (0..n).map(|step| link.jitter_of(7, 1, step, 0)).sum::<f64>() / n as f64;
    assert!((mean - 1e-3).abs() < 3e-5, "{mean}");
    let slow = (0..n).filter(|step| link.slowdown_of(7, 1, *step) == 4.0).count();
    assert!((slow as f64 / n as f64 - 0.25).abs() < 0.015, "{slow}");
    assert_eq!(link.jitter_of(7, 1, 5, 2), link.jitter_of(7, 1, 5, 2));
    assert_ne!(link.jitter_of(7, 1, 5, 2), link.jitter_of(8, 1, 5, 2));
}
