"""Claims of santurkar2018's figures on made-up numbers, through the registered experiments."""

import xarray as xr

from normscope.experiments import EXPERIMENTS

LINEAR, BOTH = (8, 9, 12), (3, 6, 10, 13)  # figures of the deep linear network, and of both


def claims_of(figure, data):
    """Judge a figure by numbers of the norms "none" and "batch".

    Args:
        figure: its number.
        data: over norm, seed, step and others. Norms that are not in it have the numbers of
            "batch"; in figures of both networks each has all of these numbers.

    Returns:
        The claims; in figures of both networks VGG's before the linear network's.
    """
    norms = [str(name) for name in data["norm"].values]
    others = [name for name in ("noisy", "l1", "l2", "linf") if name not in norms]
    data = xr.concat(
        [data, *(data.sel(norm=["batch"]).assign_coords(norm=[name]) for name in others)],
        "norm",
        data_vars="all",
    )
    if figure in BOTH:
        own = [name for name in data.sizes if name not in ("norm", "seed")]
        data = data.assign_coords({name: data[name] for name in own})
        names = {name: f"linear_{name}" for name in (*data.data_vars, *own)}
        data = xr.merge([data, data.rename(names)])
    return EXPERIMENTS[f"santurkar2018/figure{figure}"].claims(data)
