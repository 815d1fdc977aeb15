//! One run of the core at a time, so that `budget.py` in this folder can count its instructions.
//!
//! ```text
//! inferq-budget --list              list the cases
//! inferq-budget CASE …              run cases: print requests, iterations, stretches and a checksum of all results
//! inferq-budget --saturated CASE …  print the requests per second of one replica when all requests arrive at time 0
//! inferq-budget --draw FOLDER       draw the stored requests again
//! ```

mod cases;
mod checksum;
mod stored;

use std::error::Error;
use std::hint::black_box;
use std::path::Path;
use std::process::ExitCode;

use cases::Case;
use inferq_core::cluster::Cluster;
use inferq_core::error::Result;
use inferq_core::results::Results;
use inferq_core::simulation::{Options, simulate_cluster};
use inferq_core::workload::Workload;

/// The counted part: columns in memory in, results out. The results are freed outside.
#[inline(never)]
fn timed(workload: &Workload, cluster: Cluster, options: &Options) -> Result<Results> {
    black_box(simulate_cluster(black_box(workload), cluster, options, &mut ()))
}

fn run(case: &Case) -> std::result::Result<(), Box<dyn Error>> {
    let drawn = case.drawn();
    let workload = drawn.view();
    let (cluster, options) = (case.cluster()?, case.options(&workload));
    let results = timed(&workload, cluster, &options)?;
    let (requests, totals) = (workload.len(), results.totals);
    println!(
        r#"{{"case": {:?}, "requests": {requests}, "iterations": {}, "stretches": {}, "checksum": "{:016x}"}}"#,
        case.name,
        totals.iterations,
        totals.stretches,
        checksum::of(results, &workload)
    );
    Ok(())
}

fn saturated(case: &Case) -> std::result::Result<(), Box<dyn Error>> {
    let case = case.clone().saturated();
    let drawn = case.drawn().at_once();
    let workload = drawn.view();
    let results = simulate_cluster(&workload, case.cluster()?, &case.options(&workload), &mut ())?;
    println!("{}: {:.4} requests/s", case.name, workload.len() as f64 / results.totals.end.seconds());
    Ok(())
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let all = cases::all();
    let work = |names: &[String], work: fn(&Case) -> std::result::Result<(), Box<dyn Error>>| {
        names.iter().try_for_each(|name| {
            let case = all
                .iter()
                .find(|case| case.name == name)
                .ok_or_else(|| format!("unknown case {name:?}; --list prints all cases"))?;
            work(case)
        })
    };
    let done = match arguments.split_first() {
        Some((flag, [])) if flag == "--list" => {
            all.iter().for_each(|case| println!("{}", case.name));
            Ok(())
        }
        Some((flag, names)) if flag == "--saturated" => work(names, saturated),
        Some((flag, [folder])) if flag == "--draw" => stored::draw(Path::new(folder)),
        Some(_) => work(&arguments, run),
        None => Err("no case given; --list prints all cases".into()),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("inferq-budget: {error}");
            ExitCode::FAILURE
        }
    }
}
