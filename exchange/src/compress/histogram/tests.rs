use super::*;

/// `dp_small` of the project's reference vectors: S0, S1, S2 of a Laplace density on 16 even bins,
/// and the levels that its Python dynamic programme found.
const S0: [f64; 8] = [
    0.0036065631360157305,
    0.007635094218859962,
    0.016163494588165874,
    0.03421811831166603,
    0.07243975703425146,
    0.15335496684492847,
    0.32465246735834974,
    0.6872892787909722,
];

fn small() -> Distribution {
    let edges: Vec<f64> = (0..=16).map(|i| i as f64 / 8.0 - 1.0).collect();
    let centres: Vec<f64> = edges.windows(2).map(|pair| (pair[0] + pair[1]) / 2.0).collect();
    let mut distribution = Distribution::on(edges);
    let weight = |bin: usize| S0[bin.min(15 - bin)];
    distribution.fill((0..16).map(|bin| {
        let (w, u) = (weight(bin), centres[bin]);
        [w, w * u, w * u * u]
    }));
    distribution
}

fn solved(of: &Distribution, aim: Aim, count: usize) -> Vec<f64> {
    let mut levels = vec![0.0; count];
    Solver::default().solve(of, aim, &mut levels);
    levels
}

#[test]
fn the_reference_levels_come_out() {
    let of = small();
    let mirrored = |levels: &[f64]| levels.iter().rev().map(|l| -l).collect::<Vec<_>>();
    let (four, one) = (Aim::Biased(4.0), Aim::Biased(1.0));
    let cases: [(Aim, &[f64]); 9] = [
        (Aim::Unbiased, &[-1.0, 0.0, 1.0]),
        (four, &[-0.375, 0.0, 0.375]),
        (one, &[-0.25, 0.0, 0.25]),
        (Aim::Unbiased, &[-1.0, -0.25, 0.125, 1.0]),
        (four, &[-0.5, -0.125, 0.125, 0.5]),
        (one, &[-0.375, -0.125, 0.125, 0.375]),
        (Aim::Unbiased, &[-1.0, -0.5, -0.25, -0.125, 0.0, 0.125, 0.375, 1.0]),
        (four, &[-0.75, -0.375, -0.125, 0.0, 0.125, 0.25, 0.5, 0.75]),
        (one, &[-0.875, -0.625, -0.375, -0.125, 0.125, 0.375, 0.625, 0.875]),
    ];
    for (aim, expected) in cases {
        let found = solved(&of, aim, expected.len());
        // The distribution is symmetric: the mirror image is as good.
        assert!(found == expected || found == mirrored(expected), "{aim:?}: {found:?}");
    }
}

/// The rounding rule behind the cost: `kappa_rounding` of the project's reference vectors.
#[test]
fn the_cost_of_a_gap_is_that_of_the_best_probabilities() {
    const T: [f64; 9] = [0.0, 0.05, 0.1, 0.25, 0.4, 0.5, 0.6, 0.9, 1.0];
    let cases: [(f64, [f64; 9], [f64; 9]); 3] = [
        (
            1.5,
            [0.0, 0.0, 0.0, 0.0, 0.2, 0.5, 0.8, 1.0, 1.0],
            [0.0, 0.00375, 0.015, 0.09375, 0.22, 0.25, 0.22, 0.015, 0.0],
        ),
        (
            4.0,
            [0.0, 0.0, 0.0, 1.0 / 6.0, 11.0 / 30.0, 0.5, 19.0 / 30.0, 1.0, 1.0],
            [0.0, 0.01, 0.04, 1.0 / 6.0, 0.236_666_666_7, 0.25, 0.236_666_666_7, 0.04, 0.0],
        ),
        (
            16.0,
            [
                0.0,
                0.02,
                0.073_333_333,
                0.233_333_333,
                0.393_333_333,
                0.5,
                0.606_666_667,
                0.926_666_667,
                1.0,
            ],
            [
                0.0,
                0.034,
                0.079_333_333,
                0.183_333_333,
                0.239_333_333,
                0.25,
                0.239_333_333,
                0.079_333_333,
                0.0,
            ],
        ),
    ];
    const BINS: usize = 4000;
    for (lambda, ups, costs) in cases {
        for ((t, up), cost) in T.into_iter().zip(ups).zip(costs) {
            // The threshold that the rounding uses, for evenly spread random numbers.
            let sharpness = 1.0 - 1.0 / lambda;
            let rounded_up = |i: usize| t > 0.5 + sharpness * ((i as f64 + 0.5) / 1e4 - 0.5);
            let share = (0..10_000).filter(|i| rounded_up(*i)).count() as f64 / 1e4;
            assert!((share - up).abs() < 2e-4, "λ {lambda}, t {t}: {share}");
            assert!((lambda * (up - t).powi(2) + up * (1.0 - up) - cost).abs() < 1e-8);
            // All weight in the one narrow bin around t.
            let mut of = Distribution::on((0..=BINS).map(|i| i as f64 / BINS as f64).collect());
            let full = ((t * BINS as f64) as usize).min(BINS - 1);
            let moments = |i: usize| if i == full { [1.0, t, t * t] } else { [0.0; 3] };
            of.fill((0..BINS).map(moments));
            let found = biased(&of, lambda, 0, BINS, &mut [0; 2]);
            assert!((found - cost).abs() < 2e-3, "λ {lambda}, t {t}: {found}, not {cost}");
        }
    }
}

#[test]
fn bins_of_the_usual_grid_hold_what_lies_between_their_edges() {
    let edges = edges();
    assert_eq!((edges.len(), edges[0], edges[HALF], edges[EDGES - 1]), (EDGES, -1.0, 0.0, 1.0));
    for i in -1000..=1000 {
        let u = f64::from(i) / 1000.0 + 1e-7;
        let bin = bin(u);
        assert!(bin == EDGES - 2 || edges[bin] <= u && u < edges[bin + 1], "{u}");
    }
    assert_eq!((bin(-1.0), bin(0.0), bin(1.0)), (0, HALF, EDGES - 2));
}
