"""Losses as modules, under torch's names: each is told what its function takes.

CTCLoss and AdaptiveLogSoftmaxWithLoss are not here.
"""

from __future__ import annotations

from pullback.nn.base.layer import Layer
from pullback.nn.loss import cross_entropy as C
from pullback.nn.loss import losses as L
from pullback.nn.loss import margins as M


class L1Loss(Layer, function=L.l1_loss, inputs=2):
    """Example:
    >>> nn.L1Loss()(pb.tensor([0.25, 0.5]), pb.tensor([0.0, 1.0]))
    Tensor(0.375, dtype=float32)
    """


class MSELoss(Layer, function=L.mse_loss, inputs=2):
    """Example:
    >>> nn.MSELoss()(pb.tensor([0.25, 0.5]), pb.tensor([0.0, 1.0]))
    Tensor(0.15625, dtype=float32)
    """


class SmoothL1Loss(Layer, function=L.smooth_l1_loss, inputs=2):
    """Example:
    >>> nn.SmoothL1Loss()(pb.tensor([0.25, 0.5]), pb.tensor([0.0, 1.0]))
    Tensor(0.078125, dtype=float32)
    """


class HuberLoss(Layer, function=L.huber_loss, inputs=2):
    """Example:
    >>> nn.HuberLoss()(pb.tensor([0.25, 0.5]), pb.tensor([0.0, 1.0]))
    Tensor(0.078125, dtype=float32)
    """


class BCELoss(Layer, function=L.binary_cross_entropy, inputs=2):
    """Example:
    >>> nn.BCELoss()(pb.tensor([0.25, 0.5]), pb.tensor([0.0, 1.0]))
    Tensor(0.49041462, dtype=float32)
    """


class BCEWithLogitsLoss(Layer, function=L.binary_cross_entropy_with_logits, inputs=2):
    """Example:
    >>> nn.BCEWithLogitsLoss()(pb.tensor([0.25, 0.5]), pb.tensor([0.0, 1.0]))
    Tensor(0.6500082, dtype=float32)
    """


class SoftMarginLoss(Layer, function=L.soft_margin_loss, inputs=2):
    """Example:
    >>> nn.SoftMarginLoss()(pb.tensor([0.25, 0.5]), pb.tensor([-1.0, 1.0]))
    Tensor(0.6500082, dtype=float32)
    """


class KLDivLoss(Layer, function=L.kl_div, inputs=2):
    """Example:
    >>> nn.KLDivLoss("batchmean")(pb.log(pb.tensor([[0.5, 0.5]])), pb.tensor([[0.25, 0.75]]))
    Tensor(0.13081202, dtype=float32)
    """


class PoissonNLLLoss(Layer, function=L.poisson_nll_loss, inputs=2):
    """Example:
    >>> nn.PoissonNLLLoss()(pb.tensor([0.25, 0.5]), pb.tensor([0.0, 1.0]))
    Tensor(1.2163734, dtype=float32)
    """


class GaussianNLLLoss(Layer, function=L.gaussian_nll_loss, inputs=3):
    """Example:
    >>> nn.GaussianNLLLoss()(pb.tensor([0.25, 0.5]), pb.tensor([0.0, 1.0]), pb.ones(2))
    Tensor(0.078125, dtype=float32)
    """


class CrossEntropyLoss(Layer, function=C.cross_entropy, inputs=2):
    """Example:
    >>> nn.CrossEntropyLoss()(pb.zeros((2, 4)), pb.tensor([1, 3]))
    Tensor(1.3862944, dtype=float32)
    """


class NLLLoss(Layer, function=C.nll_loss, inputs=2):
    """Example:
    >>> nn.NLLLoss()(pb.full((2, 4), -1.5), pb.tensor([1, 3]))
    Tensor(1.5, dtype=float32)
    """


class CosineSimilarity(Layer, function=M.cosine_similarity, inputs=2):
    """Example:
    >>> nn.CosineSimilarity()(pb.tensor([[3.0, 4.0]]), pb.tensor([[4.0, 3.0]]))
    Tensor([0.96000004], dtype=float32)
    """


class PairwiseDistance(Layer, function=M.pairwise_distance, inputs=2):
    """Example:
    >>> nn.PairwiseDistance()(pb.tensor([[3.0, 4.0]]), pb.zeros((1, 2)))
    Tensor([5.0000014], dtype=float32)
    """


class HingeEmbeddingLoss(Layer, function=M.hinge_embedding_loss, inputs=2):
    """Example:
    >>> nn.HingeEmbeddingLoss()(pb.tensor([0.25, 0.5]), pb.tensor([-1.0, 1.0]))
    Tensor(0.625, dtype=float32)
    """


class CosineEmbeddingLoss(Layer, function=M.cosine_embedding_loss, inputs=3):
    """Example:
    >>> nn.CosineEmbeddingLoss()(pb.tensor([[3.0, 4.0]]), pb.tensor([[4.0, 3.0]]),
    ... pb.tensor([1.0]))
    Tensor(0.04000002, dtype=float32)
    """


class MarginRankingLoss(Layer, function=M.margin_ranking_loss, inputs=3):
    """Example:
    >>> nn.MarginRankingLoss(margin=0.5)(pb.tensor([0.25, 0.5]), pb.tensor([0.0, 1.0]),
    ... pb.tensor([-1.0, 1.0]))
    Tensor(0.875, dtype=float32)
    """


class TripletMarginLoss(Layer, function=M.triplet_margin_loss, inputs=3):
    """Example:
    >>> nn.TripletMarginLoss()(pb.zeros((1, 2)), pb.tensor([[3.0, 4.0]]), pb.tensor([[4.0,
    ... 3.0]]))
    Tensor(1., dtype=float32)
    """


class TripletMarginWithDistanceLoss(Layer, function=M.triplet_margin_with_distance_loss, inputs=3):
    """Example:
    >>> nn.TripletMarginWithDistanceLoss(margin=2.0)(pb.zeros((1, 2)), pb.tensor([[3.0, 4.0]]),
    ... pb.tensor([[4.0, 3.0]]))
    Tensor(2., dtype=float32)
    """


class MultiMarginLoss(Layer, function=M.multi_margin_loss, inputs=2):
    """Example:
    >>> nn.MultiMarginLoss()(pb.tensor([[0.0, 1.0]]), pb.tensor([1]))
    Tensor(0., dtype=float32)
    """


class MultiLabelMarginLoss(Layer, function=M.multilabel_margin_loss, inputs=2):
    """Example:
    >>> nn.MultiLabelMarginLoss()(pb.tensor([[0.0, 1.0]]), pb.tensor([[1, -1]]))
    Tensor(0., dtype=float32)
    """


class MultiLabelSoftMarginLoss(Layer, function=M.multilabel_soft_margin_loss, inputs=2):
    """Example:
    >>> nn.MultiLabelSoftMarginLoss()(pb.tensor([[0.0, 1.0]]), pb.tensor([[0.0, 1.0]]))
    Tensor(0.50320446, dtype=float32)
    """
