"""Predictions of whole fields by nets of patches."""

import dask.array as da
import numpy as np
import pytest

from singa_dask import Model, Regressor, layers
from singa_dask.errors import ConfigError, DataError

FIELD = np.random.default_rng(0).normal(size=(37, 29)).astype("f4")


def of(*shape, values=1, last=(), **more):
    """Two convolutions, which see two positions around each."""
    net = [
        layers.RecordInput(shape=shape, **more),
        layers.Convolution(num_filters=4, kernel=3, pad=1),
        layers.ReLU(),
        layers.Convolution(num_filters=values, kernel=3, pad=1),
    ]
    return Model([*net, *last], seed=3)


@pytest.fixture(scope="module")
def model():
    return of(12, 10)


@pytest.fixture(scope="module")
def whole(model):
    """The prediction of the same net on the whole field."""
    large = of(*FIELD.shape)
    large.load_state_dict(model.state_dict())
    return large.predict(FIELD[None])[0, ..., 0]


@pytest.mark.parametrize("stride", [None, 1, 5, 6])
def test_with_a_margin_it_is_the_net_on_the_whole_field(model, whole, stride):
    np.testing.assert_allclose(model.predict_field(FIELD, stride=stride, margin=2), whole, rtol=1e-4, atol=1e-5)


def test_predictions_of_overlapping_patches_are_averaged(model, whole):
    found = model.predict_field(FIELD, stride=7)
    total, count = np.zeros_like(FIELD), np.zeros_like(FIELD)
    for row in (0, 7, 14, 21, 25):
        for column in (0, 7, 14, 19):
            place = np.s_[row : row + 12, column : column + 10]
            total[place] += model.predict(FIELD[place][None])[0, ..., 0]
            count[place] += 1
    np.testing.assert_allclose(found, total / count, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(found[2:5, 2:5], whole[2:5, 2:5], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("chunks", [(10, 8), (37, 5), (20, 29), (3, 3)])
@pytest.mark.parametrize("options", [{}, {"stride": 3, "margin": 1}])
def test_blocks_of_dask_give_the_same_lazily(model, chunks, options):
    lazy = da.from_array(FIELD, chunks=chunks)
    found = model.predict_field(lazy, **options)
    assert isinstance(found, da.Array) and found.shape == FIELD.shape and found.dtype == FIELD.dtype
    np.testing.assert_allclose(found.compute(), model.predict_field(FIELD, **options), rtol=1e-4, atol=1e-5)
    part = found[30:, 20:].compute()
    np.testing.assert_allclose(part, model.predict_field(FIELD, **options)[30:, 20:], rtol=1e-4, atol=1e-5)


def test_the_model_is_sent_once(model):
    tasks = dict(model.predict_field(da.from_array(FIELD, chunks=12)).__dask_graph__())
    assert sum(str(key).startswith("model-") for key in tasks) == 1


@pytest.mark.parametrize("lazy", [False, True])
def test_where_no_complete_patch_lies_it_is_nan(model, lazy):
    holed = FIELD.copy()
    holed[:, :9] = np.nan
    holed[20, 20] = np.nan
    x = da.from_array(holed, chunks=(16, 14)) if lazy else holed
    found = np.asarray(model.predict_field(x, stride=1))
    assert np.isnan(found[:, :9]).all() and np.isnan(found[20, 20:]).all()  # of one row, only the last patch is there
    assert np.isnan(found).sum() == 37 * 9 + 9
    near = model.predict_field(x, stride=1, margin=2)
    np.testing.assert_allclose(np.asarray(near)[3:6, 12:], model.predict_field(FIELD, margin=2)[3:6, 12:], atol=1e-5)
    assert np.isnan(np.asarray(near)).sum() > np.isnan(found).sum()
    masked = np.ma.masked_invalid(holed)
    np.testing.assert_array_equal(model.predict_field(masked, stride=1), model.predict_field(holed, stride=1))


def test_several_channels_and_values_wherever_the_channels_are():
    model = of(2, 12, 12, values=3, last=[layers.SoftmaxLoss()], label_shape=[12, 12])
    x = np.stack([FIELD, FIELD**2], axis=-1)
    found = model.predict_field(x)
    assert found.shape == (37, 29, 3)
    np.testing.assert_allclose(found.sum(axis=-1), 1, rtol=1e-5)
    np.testing.assert_array_equal(model.predict_field(np.moveaxis(x, -1, 0)), found)
    lazy = model.predict_field(da.from_array(x, chunks=(20, 20, 1)))
    np.testing.assert_allclose(lazy.compute(), found, rtol=1e-4, atol=1e-5)


@pytest.fixture(scope="module", params=["first", "last"])
def trained(request):
    """A net that was trained on cubes, with its channels there."""
    x = np.random.default_rng(1).normal(size=(8, 6, 6, 6)).astype("f4")
    y = x.sum(axis=1 if request.param == "first" else -1)
    net = [layers.Convolution(num_filters=1, kernel=1)]
    fitted = Regressor(net, epochs=1, channels=request.param, random_state=0).fit(x, y)
    return fitted.model_, 0 if request.param == "first" else 2


@pytest.mark.parametrize("size", [(6, 6), (6, 20), (20, 6), (12, 9)])
@pytest.mark.parametrize("kind", [np.asarray, da.from_array, "mapping", "xarray"])
def test_where_the_shape_leaves_it_open_channels_are_where_the_training_data_have_them(trained, size, kind):
    model, axis = trained
    field = np.random.default_rng(2).normal(size=(*size, 6)).astype("f4")
    given = np.moveaxis(field, -1, axis)
    if kind == "xarray":
        dims = ("y", "x", "c")
        given = pytest.importorskip("xarray").DataArray(given, dims=np.roll(dims, 1) if axis == 0 else dims)
    else:
        given = {model.net.input_layers[0]: given} if kind == "mapping" else kind(given)
    found = np.asarray(model.predict_field(given))
    wanted = model.predict(np.moveaxis(field[:6, :6], -1, axis)[None])[0, ..., 0]
    assert found.shape == size
    np.testing.assert_allclose(found[:6, :6], wanted, rtol=1e-4, atol=1e-4)


def test_coordinates_are_kept(model):
    xarray = pytest.importorskip("xarray")
    coords = {"lat": np.linspace(10, 46, 37), "lon": np.arange(29), "time": 3}
    array = xarray.DataArray(FIELD, coords, ("lat", "lon"), name="sst")
    found = model.predict_field(array)
    assert found.dims == ("lat", "lon") and set(found.coords) == {"lat", "lon", "time"}
    np.testing.assert_array_equal(found.lat, array.lat)
    np.testing.assert_array_equal(found, model.predict_field(FIELD))
    lazy = model.predict_field(array.chunk(lat=20))
    assert isinstance(lazy.data, da.Array) and lazy.dims == ("lat", "lon")
    classes = of(2, 12, 12, values=3, last=[layers.SoftmaxLoss()], label_shape=[12, 12])
    fields = xarray.Dataset({"sst": array, "slp": array**2})
    found = classes.predict_field(fields)
    assert found.dims == ("lat", "lon", "class") and list(found["class"].values) == ["0", "1", "2"]
    np.testing.assert_array_equal(classes.predict_field(fields.to_dataarray("band")), found)
    assert of(2, 12, 12, values=3).predict_field(fields).dims == ("lat", "lon", "output")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"stride": 11}, "stride: must be from 1 to 10"),
        ({"stride": 7, "margin": 2}, "stride: must be from 1 to 6, so that patches of 10 with margins of 2"),
        ({"stride": 0}, "stride: must be from 1"),
        ({"margin": 5}, "margin: must be at least 0 and less than half a patch of 10"),
        ({"margin": -1}, "margin: must be at least 0"),
        ({"output": "nothing"}, "is not an output"),
    ],
)
def test_options_that_cannot_be(model, options, said):
    with pytest.raises(ConfigError, match=said):
        model.predict_field(FIELD, **options)


@pytest.mark.parametrize("shape", [(11, 29), (37, 29, 2), (3, 37, 29, 1), (37,)])
def test_other_fields_are_refused(model, shape):
    with pytest.raises(DataError, match=r"one field with 1 channel.*of at least 12 x 10.*Received: shape"):
        model.predict_field(np.zeros(shape, "f4"))


@pytest.mark.parametrize(
    ("shape", "larger"), [((37, 29), True), ((37, 29, 1), True), ((1, 12, 29), True), ((11, 29), False)]
)
def test_predict_names_the_method_for_larger_fields(model, shape, larger):
    with pytest.raises(DataError, match=r"samples of shape .* do not fit") as told:
        model.predict(np.zeros((2, *shape), "f4"))
    assert ("`Model.predict_field` predicts fields that are larger" in str(told.value)) is larger


def test_nets_that_predict_no_fields_are_refused():
    one = Model([layers.RecordInput(shape=[8, 8]), layers.InnerProduct(num_output=64)])
    with pytest.raises(ConfigError, match="must predict fields of the size of its patches, 8 x 8"):
        one.predict_field(FIELD)
    flat = Model([layers.RecordInput(shape=[8]), layers.InnerProduct(num_output=8)])
    with pytest.raises(ConfigError, match="must read images of one size"):
        flat.predict_field(FIELD)


@pytest.mark.parametrize("kind", ["numpy", "dask", "mixed", "xarray"])
def test_nets_with_several_input_layers(kind):
    sst, slp = layers.RecordInput("sst", shape=[12, 10]), layers.RecordInput("slp", shape=[12, 10])
    both = layers.Concate("both", concate_dim=1)(sst, slp)
    model = Model([layers.Convolution(num_filters=1, kernel=1)(both)], seed=1)
    expected = model.predict({"sst": FIELD[None, :12, :10], "slp": 2 * FIELD[None, :12, :10]})[0, ..., 0]
    lazy = da.from_array(FIELD, chunks=14)
    x = {
        "numpy": {"sst": FIELD, "slp": 2 * FIELD},
        "dask": {"slp": 2 * lazy, "sst": lazy},
        "mixed": {"sst": lazy, "slp": 2 * FIELD[..., None]},
    }
    if kind == "xarray":
        xarray = pytest.importorskip("xarray")
        x[kind] = xarray.Dataset({"slp": (("lat", "lon"), 2 * FIELD), "sst": (("lat", "lon"), FIELD)})
    found = model.predict_field(x[kind])
    assert found.shape == FIELD.shape and isinstance(found, da.Array) == (kind in ("dask", "mixed"))
    np.testing.assert_allclose(np.asarray(found)[:12, :10], expected, rtol=1e-4, atol=1e-5)
    with pytest.raises(DataError, match=r"fields for the input layers sst, slp. Received: sst"):
        model.predict_field({"sst": FIELD})
    with pytest.raises(DataError, match="fields of one size"):
        model.predict_field({"sst": FIELD, "slp": FIELD[1:]})
