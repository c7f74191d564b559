"""Variables of one data set are paired by the names of their dimensions, in every container."""

import numpy as np
import pytest
import xarray as xr

from singa_dask import Regressor, load, shard
from singa_dask.data.ingest.write import write
from singa_dask.data.sources import netcdf, zarr
from singa_dask.errors import DataError

DRAW = np.random.default_rng(0)
N, SIZE = 6, 4
GRID = ("time", "lat", "lon")
COORDS = {"time": np.arange(N), "lat": np.arange(4.0), "lon": np.arange(4.0)}
SST, SLP = (xr.DataArray(DRAW.normal(size=(N, SIZE, SIZE)), COORDS, GRID) for _ in range(2))
DATA = xr.Dataset({"sst": SST, "slp": SLP, "flux": 2 * SST - SLP})
CONTAINERS = ("netcdf", "zarr", "xarray", "mapping")


def turned(name):
    return DATA.assign({name: DATA[name].transpose("time", "lon", "lat")})


def renamed(name, **names):
    return xr.merge([DATA.drop_vars(name), DATA[name].rename(names).drop_vars([*names.values()])])


def written(tmp_path, container, *datasets, **options):
    """The columns of the shards of these datasets, one a file."""
    out, how = tmp_path / "shards", {"shuffle": False, **options}
    if container in ("netcdf", "zarr"):
        for number, data in enumerate(datasets):
            path = tmp_path / f"{number}.{'nc' if container == 'netcdf' else 'zarr'}"
            data.to_netcdf(path, engine="h5netcdf") if container == "netcdf" else data.to_zarr(path)
        form, pattern = (netcdf.FORMAT, "*.nc") if container == "netcdf" else (zarr.FORMAT, "*.zarr")
        source = form.load(f"{tmp_path}/{pattern}", x=["sst", "slp"], target="flux")[""]
        write(source, out, **how)
    else:
        x = datasets[0][["sst", "slp"]]
        shard(x if container == "xarray" else dict(x), datasets[0]["flux"], out, **how)
    return [np.asarray(each) for each in load(out, ["sst", "slp", "y"])]


@pytest.mark.parametrize("name", ["sst", "slp", "flux"])
@pytest.mark.parametrize("container", CONTAINERS)
def test_dimensions_are_found_by_their_names(tmp_path, container, name):
    sst, slp, flux = written(tmp_path, container, turned(name))
    np.testing.assert_allclose(flux, 2 * sst - slp, atol=1e-5)


@pytest.mark.parametrize("container", ["netcdf", "zarr"])
def test_files_may_have_them_in_another_order(tmp_path, container):
    sst, slp, flux = written(tmp_path, container, DATA, DATA.transpose("time", "lon", "lat"))
    np.testing.assert_array_equal(sst[:N], sst[N:])
    np.testing.assert_allclose(flux, 2 * sst - slp, atol=1e-5)


@pytest.mark.parametrize("name", ["slp", "flux"])
@pytest.mark.parametrize("container", CONTAINERS)
def test_fields_along_dimensions_of_other_names_are_refused(tmp_path, container, name):
    with pytest.raises(
        DataError, match=rf"{name.replace('flux', '(flux|y)')}.* lies along y, x, but .* along lat, lon. Rename"
    ):
        written(tmp_path, container, renamed(name, lat="y", lon="x"))


def test_estimators_refuse_them_too():
    with pytest.raises(DataError, match=r"y: lies along y, x, but X along lat, lon. Rename"):
        Regressor(epochs=1).fit(SST, DATA["flux"].rename(lat="y", lon="x"))


@pytest.mark.parametrize("container", CONTAINERS[:3])
def test_fields_of_another_size_may_lie_along_other_dimensions(tmp_path, container):
    wide = xr.DataArray(DRAW.normal(size=(N, 2, 8)), dims=("time", "y", "x"))
    assert written(tmp_path, container, DATA.assign(flux=wide))[2].shape == (N, 2, 8)


def test_grids_of_groups_are_read_in_one_order_or_refused(tmp_path):
    path = tmp_path / "g.nc"
    DATA[["sst"]].to_netcdf(path, engine="h5netcdf", group="a")
    DATA[["flux"]].isel(lat=[2, 0, 3, 1]).to_netcdf(path, engine="h5netcdf", group="b", mode="a")
    source = netcdf.FORMAT.load(path, x="a/sst", target="b/flux")[""]
    np.testing.assert_array_equal(source.blocks[0].read()["flux"], DATA["flux"])
    other = DATA[["flux"]].assign_coords(lat=[9.0, 8, 7, 6])
    other.to_netcdf(path, engine="h5netcdf", group="c", mode="a")
    with pytest.raises(
        DataError, match=r"c/flux: the coordinates along 'lat' are falling .*, but were rising .* a/sst"
    ):
        netcdf.FORMAT.load(path, x="a/sst", target="c/flux")


@pytest.mark.parametrize("container", ["netcdf", "zarr"])
def test_patches_are_not_cut_from_turned_fields(tmp_path, container):
    form = netcdf.FORMAT if container == "netcdf" else zarr.FORMAT
    path = tmp_path / ("f.nc" if container == "netcdf" else "f.zarr")
    turned("flux").to_netcdf(path, engine="h5netcdf") if container == "netcdf" else turned("flux").to_zarr(path)
    from singa_dask.data.sources.patches import Patches

    with pytest.raises(
        DataError, match=r"flux has the dimensions time, lon, lat, but sst time, lat, lon. Transpose or reorder"
    ):
        form.load(path, x="sst", target="flux", cut=Patches(2, 2))


def test_targets_without_the_samples_of_x_are_refused(tmp_path):
    with pytest.raises(DataError, match=r"y: has the dimensions .*without that of the samples"):
        shard(DATA[["sst"]], DATA["flux"].rename(time="t"), tmp_path / "s")
