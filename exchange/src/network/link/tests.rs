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
    let word = Link::parse("1gbit,local=80gbit,local_latency=5us").unwrap();
    assert_eq!((word.local, word.local_latency), (80e9, 5e-6));
    assert_eq!(word.to_string(), "1gbit,local_latency=5us,local=80gbit");
    let table = "link = { bandwidth = \"1gbit\", local = \"80gbit\", local_latency = \"5us\" }";
    assert_eq!(toml(table).unwrap(), word);
    assert_eq!(toml("link = \"wan\"").unwrap(), toml("link = { preset = \"wan\" }").unwrap());
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
        ("1gbit,slowdown=3", "write both"),
        ("1gbit,stragglers=0.1", "write both"),
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
