"""Test accuracy after one epoch on the real data, with and without BatchNorm, over three seeds.

    NORMSCOPE_DATA=folder python examples/one_epoch.py

trains ``fully_connected`` on MNIST and ``vgg`` at a quarter of its width on CIFAR-10, by SGD with
batches of 128 and no augmentation. The learning rates are stated in ``CASES``; ``vgg`` has the
paper's 0.1 (santurkar2018, A.1).
"""

import argparse
import statistics
import time

import normscope as ns

CASES = {
    "fully_connected on mnist": {
        "data": "mnist",
        "model": ("fully_connected", {}),
        "learning_rate": 0.01,
        "momentum": 0.9,
    },
    "vgg, quarter width, on cifar10": {
        "data": "cifar10",
        "model": ("vgg", {"width": 0.25}),
        "learning_rate": 0.1,
        "momentum": 0.0,
    },
}


def accuracy_after_one_epoch(case, norm, seed):
    data = ns.data.load(case["data"])
    name, options = case["model"]
    model = ns.models.build(name, norm=norm, seed=seed, **options)
    problem = ns.Problem(model, "cross_entropy", data.train)
    optimizer = ns.sgd(case["learning_rate"], momentum=case["momentum"])
    steps = len(data.train.x) // 128
    run = ns.fit(problem, optimizer, steps=steps, batch_size=128, seed=seed)
    scores = ns.training.evaluate(
        model, "cross_entropy", data.test, statistics="population", train_data=data.train
    )
    return run, scores.accuracy


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=3)
    arguments = parser.parse_args()
    for label, case in CASES.items():
        for norm in ("none", "batch"):
            start = time.perf_counter()
            outcomes, scores = [], []
            for seed in range(arguments.seeds):
                run, accuracy = accuracy_after_one_epoch(case, norm, seed)
                outcomes.append(run.outcome.name.lower())
                scores.append(accuracy)
            print(
                f"{label:32} {norm:6} lr {case['learning_rate']:<5} "
                f"accuracy {statistics.mean(scores):.4f} (from {min(scores):.4f} to "
                f"{max(scores):.4f}) {', '.join(sorted(set(outcomes)))} "
                f"{time.perf_counter() - start:.0f} s",
                flush=True,
            )


if __name__ == "__main__":
    main()
