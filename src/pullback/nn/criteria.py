"""Losses as modules, under torch's names: each is told what its function takes.

CTCLoss and AdaptiveLogSoftmaxWithLoss are not here.
"""

from __future__ import annotations

from pullback.nn import cross_entropy as C
from pullback.nn import losses as L
from pullback.nn import margins as M
from pullback.nn.layer import Layer


class L1Loss(Layer, function=L.l1_loss, inputs=2): ...


class MSELoss(Layer, function=L.mse_loss, inputs=2): ...


class SmoothL1Loss(Layer, function=L.smooth_l1_loss, inputs=2): ...


class HuberLoss(Layer, function=L.huber_loss, inputs=2): ...


class BCELoss(Layer, function=L.binary_cross_entropy, inputs=2): ...


class BCEWithLogitsLoss(Layer, function=L.binary_cross_entropy_with_logits, inputs=2): ...


class SoftMarginLoss(Layer, function=L.soft_margin_loss, inputs=2): ...


class KLDivLoss(Layer, function=L.kl_div, inputs=2): ...


class PoissonNLLLoss(Layer, function=L.poisson_nll_loss, inputs=2): ...


class GaussianNLLLoss(Layer, function=L.gaussian_nll_loss, inputs=3): ...


class CrossEntropyLoss(Layer, function=C.cross_entropy, inputs=2): ...


class NLLLoss(Layer, function=C.nll_loss, inputs=2): ...


class CosineSimilarity(Layer, function=M.cosine_similarity, inputs=2): ...


class PairwiseDistance(Layer, function=M.pairwise_distance, inputs=2): ...


class HingeEmbeddingLoss(Layer, function=M.hinge_embedding_loss, inputs=2): ...


class CosineEmbeddingLoss(Layer, function=M.cosine_embedding_loss, inputs=3): ...


class MarginRankingLoss(Layer, function=M.margin_ranking_loss, inputs=3): ...


class TripletMarginLoss(Layer, function=M.triplet_margin_loss, inputs=3): ...


class TripletMarginWithDistanceLoss(
    Layer, function=M.triplet_margin_with_distance_loss, inputs=3
): ...


class MultiMarginLoss(Layer, function=M.multi_margin_loss, inputs=2): ...


class MultiLabelMarginLoss(Layer, function=M.multilabel_margin_loss, inputs=2): ...


class MultiLabelSoftMarginLoss(Layer, function=M.multilabel_soft_margin_loss, inputs=2): ...
