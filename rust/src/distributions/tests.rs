//! Tests of drawn workloads and of errors for invalid ones.

use super::*;
use crate::engine::parse;

fn w1(requests: u64) -> Synthetic {
    Synthetic {
        requests,
        arrivals: Arrivals::Poisson { rate: 10.0 },
        lengths: Lengths::Independent {
            prompt: Length::Lognormal { mean: 230.0, median: 90.0, cap: Some(4096) },
            output: Length::Lognormal { mean: 250.0, median: 150.0, cap: Some(4096) },
        },
    }
}

fn table() -> Joint {
    Joint::Empirical { prompt_tokens: vec![10, 20, 30], output_tokens: vec![1, 2, 3] }
}

/// Workloads that together cover every distribution.
fn every_kind(requests: u64) -> Vec<Synthetic> {
    let apart =
        |arrivals, prompt, output| Synthetic { requests, arrivals, lengths: Lengths::Independent { prompt, output } };
    vec![
        w1(requests),
        apart(
            Arrivals::Gamma { rate: 3.5, cv: 2.0 },
            Length::Geometric { mean: 250.0, cap: None },
            Length::Uniform { low: 3, high: 900 },
        ),
        apart(
            Arrivals::Gamma { rate: 3.5, cv: 0.3 },
            Length::LogUniform { low: 10_000, high: 100_000 },
            Length::Fixed { tokens: 5 },
        ),
        Synthetic { requests, arrivals: Arrivals::Deterministic { rate: 7.0 }, lengths: Lengths::Joint(table()) },
    ]
}

/// A request does not depend on the number of requests or on batch ends.
#[test]
fn a_shorter_workload_is_a_prefix() {
    for (longest, requests) in [1, 2, 3, 4, 5, 255, 256, 257, 1000].map(|n| (every_kind(2000), n)) {
        for (long, short) in longest.iter().zip(every_kind(requests)) {
            let (long, short) = (long.draw(42).expect("a distribution"), short.draw(42).expect("a distribution"));
            let end = requests as usize;
            assert_eq!(short.arrival_ns, long.arrival_ns[..end]);
            assert_eq!(short.prompt_tokens, long.prompt_tokens[..end]);
            assert_eq!(short.output_tokens, long.output_tokens[..end]);
        }
    }
}

/// Parts equal the whole, for any part sizes and for any order of calls.
#[test]
fn parts_equal_the_whole() {
    let mut workloads = every_kind(1003);
    for arrivals in [
        Arrivals::Weibull { rate: 3.0, shape: 0.6 },
        Arrivals::OnOff { on_rate: 30.0, off_rate: 1.0, mean_on_s: 2.0, mean_off_s: 3.0 },
        Arrivals::TimeVarying { times_s: vec![0.0, 4.0], rates: vec![20.0, 1.0], period_s: Some(9.0) },
    ] {
        let prompt = Length::PoissonLength { mean: 40.0, cap: Some(4000) };
        let lengths = Lengths::Independent { prompt, output: Length::PoissonLength { mean: 3.0, cap: None } };
        workloads.push(Synthetic { requests: 1003, arrivals, lengths });
    }
    workloads.push(Synthetic { lengths: Lengths::Absent, ..w1(1003) });
    for workload in workloads {
        let whole = workload.draw(42).expect("a distribution");
        for limit in [1, 4, 256, 260, 5000] {
            let (mut parts, mut drawing) =
                (DrawnColumns::default(), Drawing::new(workload.clone(), 42).expect("a distribution"));
            let (mut arrivals, mut alone) = (Vec::new(), Drawing::new(workload.clone(), 42).expect("a distribution"));
            while parts.arrival_ns.len() < 1003 {
                let part = drawing.columns(limit).expect("a part");
                assert!(!part.arrival_ns.is_empty() && part.arrival_ns.len() as u64 <= limit.next_multiple_of(4));
                parts.arrival_ns.extend(part.arrival_ns);
                parts.prompt_tokens.extend(part.prompt_tokens);
                parts.output_tokens.extend(part.output_tokens);
                arrivals.extend(alone.arrivals(limit).expect("a part"));
            }
            assert_eq!(parts, whole);
            assert_eq!(arrivals, whole.arrival_ns);
            assert!(drawing.columns(limit).expect("nothing").arrival_ns.is_empty());
        }
    }
}

#[test]
fn another_rate_keeps_the_requests() {
    let mut faster = w1(1000);
    faster.arrivals = Arrivals::Deterministic { rate: 99.0 };
    let (slow, fast) = (w1(1000).draw(1).expect("a distribution"), faster.draw(1).expect("a distribution"));
    assert_eq!((slow.prompt_tokens, slow.output_tokens), (fast.prompt_tokens, fast.output_tokens));
    assert_ne!(w1(1000).draw(1), w1(1000).draw(2));
}

/// Digest of one seed as computed on x86: other machines, compilers and vector widths must produce the same bits. The
/// other tests check the values.
#[test]
fn the_bits_are_the_same_everywhere() {
    // FNV-1a over the columns.
    let mut digest = 0xcbf2_9ce4_8422_2325_u64;
    let mut eat = |value: i64| {
        for byte in value.to_le_bytes() {
            digest = (digest ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        }
    };
    for workload in every_kind(100_000) {
        let columns = workload.draw(2026).expect("a distribution");
        columns.arrival_ns.into_iter().for_each(&mut eat);
        columns.prompt_tokens.into_iter().for_each(|tokens| eat(tokens.into()));
        columns.output_tokens.into_iter().for_each(|tokens| eat(tokens.into()));
    }
    assert_eq!(digest, 0xff55_824c_0a46_caf4);
}

#[test]
fn rows_are_uniform_and_pairs_stay_together() {
    let (prompts, outputs) = table().draw_from(Stream::new(8, Source::Rows), 200_000).expect("a distribution");
    assert!(prompts.iter().zip(&outputs).all(|(prompt, output)| *prompt == 10 * output));
    for row in 1..=3 {
        let share = outputs.iter().filter(|&&output| output == row).count() as f64 / 200_000.0;
        let deviation = (2.0 / 9.0 / 200_000_f64).sqrt();
        assert!((share - 1.0 / 3.0).abs() < 5.0 * deviation);
    }
    let rows = draw_rows(3, 200_000, 8).expect("a distribution");
    assert!(rows.iter().zip(&outputs).all(|(row, output)| row + 1 == output.unsigned_abs()));
}

#[test]
fn json_is_read() {
    let json = r#"{"requests": 9, "arrivals": {"kind": "Poisson", "rate": 10},
        "prompt": {"kind": "Lognormal", "mean": 230, "median": 90.0, "cap": 4096},
        "output": {"kind": "Lognormal", "mean": 250.0, "median": 150.0, "cap": 4096}}"#;
    assert_eq!(parse(json), Ok(w1(9)));
    let json = r#"{"requests": 9, "arrivals": {"kind": "Deterministic", "rate": 7.0},
        "lengths": {"kind": "Empirical", "prompt_tokens": [10, 20, 30], "output_tokens": [1, 2, 3]}}"#;
    assert_eq!(parse::<Synthetic>(json).as_ref(), every_kind(9).last().ok_or(&Error::overflow("nan")));
    assert_eq!(
        parse(r#"{"kind": "Geometric", "mean": 4, "cap": null}"#),
        Ok(Length::Geometric { mean: 4.0, cap: None })
    );
}

/// Numbers have the value that was typed: no bit is lost in JSON.
#[test]
fn json_floats_are_read_exactly() {
    let stream = Stream::new(1, Source::Service);
    for request in 0..10_000 {
        let rate = 10.0 * stream.uniform(request, 0);
        let json = format!(r#"{{"kind": "Poisson", "rate": {rate}}}"#);
        assert_eq!(parse(&json), Ok(Arrivals::Poisson { rate }));
    }
}

/// Each invalid value is named by its path; `with` inserts JSON into an otherwise valid workload.
#[test]
fn bad_input_is_named() {
    let good = [
        ("requests", "1"),
        ("arrivals", r#"{"kind":"Poisson","rate":1}"#),
        ("prompt", r#"{"kind":"Fixed","tokens":1}"#),
        ("output", r#"{"kind":"Fixed","tokens":1}"#),
    ];
    let cases = [
        ("requests", "-1", "requests"),
        ("requests", "4294967296", "requests: must be from 1"),
        ("requests", "1.5", "requests"),
        ("arrivals", r#"{"kind":"Poisson","rate":0}"#, "arrivals.rate"),
        ("arrivals", r#"{"kind":"Poisson","rate":NaN}"#, "arrivals.rate"),
        ("arrivals", r#"{"kind":"Poisson","rate":Infinity}"#, "arrivals.rate"),
        ("arrivals", r#"{"kind":"Deterministic","rate":1e-300}"#, "arrivals.rate"),
        ("arrivals", r#"{"kind":"Poisson"}"#, "arrivals: missing field `rate`"),
        ("arrivals", r#"{"kind":"Poisson","rate":1,"cv":1}"#, "arrivals: unknown field `cv`"),
        ("arrivals", r#"{"kind":"Poison","rate":1}"#, "arrivals.kind: unknown variant `Poison`"),
        ("arrivals", r#"{"kind":"Gamma","rate":1,"cv":-2}"#, "arrivals.cv"),
        ("arrivals", r#"{"kind":"Gamma","rate":1,"cv":1e300}"#, "arrivals.cv"),
        ("prompt", r#"{"kind":"Fixed","tokens":2147483648}"#, "prompt.tokens"),
        ("output", r#"{"kind":"Uniform","low":0,"high":4}"#, "output.low"),
        ("output", r#"{"kind":"LogUniform","low":1,"high":3000000000}"#, "output.high"),
        ("prompt", r#"{"kind":"Geometric","mean":2,"cap":-1}"#, "prompt.cap"),
        ("promt", "1", "promt: unknown field"),
        ("lengths", r#"{"kind":"Empirical","prompt_tokens":[1],"output_tokens":[1]}"#, "a workload must have"),
    ];
    for (field, value, expected) in cases {
        let others = good.iter().filter(|(name, _)| *name != field).copied();
        let fields: Vec<String> =
            others.chain([(field, value)]).map(|(name, value)| format!("\"{name}\":{value}")).collect();
        let workload = parse::<Synthetic>(&format!("{{{}}}", fields.join(","))).and_then(|workload| workload.check());
        let error = workload.expect_err("a bad distribution").to_string();
        assert!(error.contains(expected), "{field} {value}: {error}");
    }
    assert!(parse::<Synthetic>("").is_err());
}

#[test]
fn bad_tables_are_named() {
    let cases = [
        (vec![], vec![], "lengths.prompt_tokens: must be from 1"),
        (vec![1, 2], vec![1], "lengths.output_tokens: has 1 rows"),
        (vec![1, 0], vec![1, 1], "lengths.prompt_tokens[1]: must be from 1"),
        (vec![1], vec![1 << 31], "lengths.output_tokens[0]: must be from 1"),
    ];
    for (prompt_tokens, output_tokens, expected) in cases {
        let lengths = Lengths::Joint(Joint::Empirical { prompt_tokens, output_tokens });
        let error = Synthetic { lengths, ..w1(1) }.draw(0).expect_err("a bad table").to_string();
        assert!(error.starts_with(expected), "{error}");
    }
    assert!(draw_rows(0, 1, 0).is_err());
    assert!(draw_rows(1, u64::MAX, 0).is_err());
    assert_eq!(draw_rows(1, 0, 0), Ok(vec![]));
}

/// NaN cannot be passed through JSON, but through Rust.
#[test]
fn nan_parameters_are_named() {
    for nan in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
        let error = Arrivals::Deterministic { rate: nan }.draw(1, 0).expect_err("an invalid rate").to_string();
        assert!(error.starts_with("rate: must be"), "{error}");
        let workload = Length::Lognormal { mean: nan, median: 1.0, cap: None };
        let error = workload.draw(1, 0, Side::Prompt).expect_err("an invalid mean").to_string();
        assert!(error.starts_with("mean: must be"), "{error}");
    }
}
